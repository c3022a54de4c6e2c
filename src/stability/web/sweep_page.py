"""index.html beside the figures of a sweep: one file that needs no network."""

import base64
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader
from matplotlib import rc_context
from matplotlib.figure import Figure

from stability.figures.drawing.style import styled
from stability.results import atomic
from stability.results.atomic import Unreadable
from stability.results.schema import LOG_FILE
from stability.results.sweep_rows import SweepRows
from stability.shell import version_text
from stability.web import hover
from stability.web.verdicts import Judged, verdicts

PAGE_FILE = "index.html"

NUMBERS = {
    "final_val_loss": "validation loss",
    "final_loss": "training loss",
    "learned": "learned",
    "variance_growth": "variance growth",
    "grad_ratio_median": "gradient, median",
    "grad_ratio": "gradient, all",
    "steps_done": "steps",
    "seconds": "seconds",
}
"""Columns of the runs' table after the settings, as far as a run has them."""

BROKEN = ("diverged", "failed", "interrupted")


@dataclass(frozen=True)
class PageFigure:
    """A figure on the page."""

    name: str
    title: str
    about: str
    """What it shows: the docstring of its module."""
    command: str
    files: tuple[str, ...]
    svg: str
    """The picture, in base64."""
    panels: Sequence[Mapping[str, Any]] = field(repr=False)
    """The values that the page shows under the pointer, see `hover.panels`."""

    @classmethod
    def of(
        cls, module: ModuleType, figure: Figure, facts: Mapping[str, Any], files: Sequence[str]
    ) -> "PageFigure":
        """A figure that was just drawn."""
        about = (module.__doc__ or "").strip().replace("``", "").replace("`", "")
        return cls(
            name=facts["figure"],
            title=facts["title"],
            about=" ".join(about.partition("\n")[2].split()),
            command=facts["command"],
            files=tuple(files),
            svg=base64.b64encode(_svg(figure)).decode(),
            panels=hover.panels(figure),
        )


@dataclass(frozen=True)
class Broken:
    """A run that did not complete."""

    run: str
    status: str
    why: str
    replay: str
    """The command that repeats the failing step; empty where no step was kept."""
    log: str
    """Its log, relative to the page; empty where it has none."""


def write(
    sweep: Path, runs: SweepRows, figures: Sequence[PageFigure], out: Path, refresh: int = 0
) -> Path:
    """Write the page; figures of an earlier page that were not drawn again stay on it.

    Args:
        sweep: the folder of the sweep.
        runs: a row per run.
        figures: those that were drawn now.
        out: the folder of the figures.
        refresh: seconds after which a browser reads the page again; 0 for never.

    Returns:
        The page's path.

    Raises:
        Unreadable: the page cannot be written.
    """
    page = out / PAGE_FILE
    by_name = {each.name: each for each in (*_earlier(page), *figures)}
    kept = [by_name[name] for name in sorted(by_name)]
    environment = Environment(
        loader=PackageLoader("stability.web", "."), autoescape=True, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    shown = columns(runs)
    text = environment.get_template("page.html.jinja").render(
        title=sweep.name,
        path=sweep,
        version=version_text(),
        refresh=refresh,
        remarks=(*runs.remarks, *(f"left out {n}: {why}" for n, why in runs.damaged.items())),
        columns=shown,
        rows=list(table_rows(runs, list(shown))),
        broken=list(broken(sweep, runs, out)),
        verdicts=_verdicts(sweep),
        figures=kept,
        data=_json([{k: v for k, v in asdict(each).items() if k != "svg"} for each in kept]),
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        atomic.write_text(page, text)
    except OSError as error:
        raise Unreadable(f"{page}: cannot write ({error.strerror})") from error
    return page


def _verdicts(sweep: Path) -> list[Judged]:
    try:
        return verdicts(sweep)
    except Unreadable:
        return []  # the runs' table says what cannot be read


def _svg(figure: Figure) -> bytes:
    file = io.BytesIO()
    with styled(), rc_context({"svg.fonttype": "path", "svg.hashsalt": "stability"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


def _json(value: object) -> str:
    """JSON that can stand in a script element: no ``<`` can end it."""
    return json.dumps(atomic.finite(value), allow_nan=False).replace("<", "\\u003c")


def _earlier(page: Path) -> Iterator[PageFigure]:
    """The figures of a page that was written before, whose files are still there."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    held = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.S)
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', text)
    for each, svg in zip(json.loads(held[1]) if held else (), pictures, strict=True):
        if all((page.parent / file).exists() for file in each["files"]):
            yield PageFigure(**each | {"files": tuple(each["files"]), "svg": svg})


def columns(runs: SweepRows) -> dict[str, str]:
    """Column -> its title: what varies, the status, and the numbers that any run has."""
    frame = runs.frame
    seed = ["seed"] if frame["seed"].nunique() > 1 else []
    settings = {name: name for name in (*runs.axes, *seed) if name in frame}
    numbers = {key: title for key, title in NUMBERS.items() if frame[key].notna().any()}
    return {"folder": "run"} | settings | {"status": "status"} | numbers


def table_rows(runs: SweepRows, names: Sequence[str]) -> Iterator[list[tuple[Any, str]]]:
    """Each run as cells: the value to sort by, and its text."""
    for row in runs.frame.to_dict("records"):
        yield [(_sortable(row[name]), _text(row[name])) for name in names]


def _sortable(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return "" if pd.isna(value) else value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if pd.isna(value):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def broken(sweep: Path, runs: SweepRows, out: Path) -> Iterator[Broken]:
    """The runs that did not complete, with what is known of it."""
    for row in runs.frame[runs.frame["status"].isin(BROKEN)].to_dict("records"):
        folder = sweep if row["folder"] == sweep.name else sweep / row["folder"]
        log = folder / LOG_FILE
        diverged = row["status"] == "diverged"
        yield Broken(
            run=row["folder"],
            status=row["status"],
            why=next((row[k] for k in ("error", "outcome") if isinstance(row.get(k), str)), ""),
            replay=f"python -m stability.replay {folder}" if diverged else "",
            log=os.path.relpath(log, out) if log.exists() else "",
        )
