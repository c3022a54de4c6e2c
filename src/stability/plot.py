"""The command ``python -m stability.plot PATH``: figures for every sweep found below a path.

Beside each figure lie the numbers it draws (csv) and what it was made from (json). Starts in a
second: needs neither torch nor hydra.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress

from stability import __version__, atomic, figures
from stability.figures.select import CannotFill
from stability.figures.style import WIDTHS, axes_of, styled
from stability.frames import load
from stability.index import Unreadable, sweeps

FORMATS = ("pdf", "png")


def main(argv: Sequence[str] | None = None) -> int:
    """Draw what is asked for; 0 if something was drawn, 2 with a line of reason if not."""
    args = _parser().parse_args(argv)
    words = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "-m", "stability.plot", *words])
    console = Console(soft_wrap=True, highlight=False)
    try:
        wanted = _wanted(args.figures)
        found = sweeps(args.path)
        drawn = 0
        for sweep in found:
            folder = sweep / "figures"
            if args.out:
                folder = args.out / sweep.name if len(found) > 1 else args.out
            drawn += _sweep(sweep, folder, wanted, args, command, console)
    except Unreadable as error:
        print(f"stability.plot: {error}", file=sys.stderr)
        return 2
    if not drawn:
        print(f"stability.plot: {args.path}: nothing could be drawn, see above", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m stability.plot", description="Draw the figures of every sweep found below PATH."
    )
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="a run, a sweep, or a folder of them"
    )
    names = ",".join(figures.modules())
    parser.add_argument("--figures", metavar="A,B", help=f"which to draw (default: all): {names}")
    parser.add_argument(
        "--format", default="pdf,png", type=_formats, metavar="F,F", help="pdf, png (default: both)"
    )
    parser.add_argument(
        "--at", type=int, metavar="STEP", help="draw this recorded step instead of first and last"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write (default: SWEEP/figures)"
    )
    parser.add_argument(
        "--width", type=float, choices=WIDTHS, default=6.75, help="inches (default: %(default)s)"
    )
    return parser


def _formats(text: str) -> list[str]:
    chosen = text.split(",")
    if wrong := [f for f in chosen if f not in FORMATS]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not one of {', '.join(FORMATS)}")
    return chosen


def _wanted(names: str | None) -> dict[str, ModuleType]:
    known = figures.modules()
    if names is None:
        return known
    for name in names.split(","):
        if name not in known:
            raise Unreadable(f"--figures {name}: must be one of {', '.join(known)}")
    return {name: known[name] for name in names.split(",")}


def _sweep(
    sweep: Path,
    folder: Path,
    wanted: dict[str, ModuleType],
    args: argparse.Namespace,
    command: str,
    console: Console,
) -> int:
    """Draw one sweep's figures, list them with what was skipped and why; how many were drawn."""
    try:
        runs = load(sweep, "runs")
    except Unreadable as error:
        print(f"stability.plot: {error}", file=sys.stderr)
        return 0
    if args.at is not None:
        runs.attrs["remarks"] = [*runs.attrs["remarks"], *_lacking(sweep, args.at, len(runs))]
    what = ", ".join(axes_of(runs)) or "nothing"
    console.print(f"[bold]{sweep}[/]: {len(runs)} runs, what varies: {what}", markup=True)
    for remark in runs.attrs["remarks"]:
        console.print(f"  warning: {remark}", style="yellow")
    for name, why in runs.attrs["damaged"].items():
        console.print(f"  warning: left out {name}: {why}", style="yellow", markup=False)
    drawn = 0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        for name, module in progress.track(wanted.items(), description="drawing"):
            try:
                rows = load(sweep, module.TABLE, module.COLUMNS, _where(module, runs, args.at))
                rows.attrs["remarks"] = runs.attrs["remarks"]
                numbers = module.data(rows)
                figure = module.draw(numbers, width=args.width)
            except CannotFill as reason:
                console.print(f"  {name:16} skipped: {reason}", markup=False)
                continue
            save(folder / name, figure, numbers, about(command, module, runs), args.format)
            drawn += 1
            console.print(f"  {name:16} {folder / name}.{args.format[-1]}", markup=False)
    return drawn


def _lacking(sweep: Path, step: int, runs: int) -> list[str]:
    """What to say of runs that did not record a step; an error where none did."""
    recorded = load(sweep, "layers", ["step"], {"site": ["resid_post"]})
    have = recorded[recorded["step"] == step]["run"].nunique()
    if not have:
        steps = ", ".join(map(str, sorted(recorded["step"].unique()))) or "none yet"
        raise Unreadable(f"--at {step}: {sweep} has no such step; recorded are {steps}")
    return [f"{runs - have} of {runs} runs have no step {step}"] if have < runs else []


def _where(module: ModuleType, runs: pd.DataFrame, at: int | None) -> dict[str, Any]:
    """What to read: the figure's own rows, and of those the steps that it draws."""
    where = dict(module.WHERE)
    if module.TABLE == "layers" and module.STEPS == "ends":
        last = runs["last_step"].dropna().astype(int)
        where["step"] = sorted({0, *last}) if at is None else [at]
    return where


def about(command: str, module: ModuleType, runs: pd.DataFrame) -> dict[str, Any]:
    """What a figure was made from: command, code, runs and data."""
    assert module.__doc__
    return {
        "title": module.__doc__.splitlines()[0].rstrip("."),
        "figure": module.__name__.rpartition(".")[2],
        "command": command,
        "stability": __version__,
        "git": sorted({_revision(r) for r in runs.to_dict("records")} - {""}),
        "runs": sorted(runs["run"]),
        "seeds": int(runs["seed"].nunique()),
        "statuses": {s: int(n) for s, n in sorted(runs["status"].value_counts().items())},
        "data_sha256": sorted(runs["data.sha256"].dropna().unique()),
        "warnings": runs.attrs["remarks"],
    }


def _revision(run: dict[str, Any]) -> str:
    if not isinstance(run.get("git.revision"), str):
        return ""
    return run["git.revision"] + ("+dirty" if run.get("git.dirty") is True else "")


def save(
    stem: Path, figure: Figure, numbers: pd.DataFrame, facts: dict[str, Any], formats: list[str]
) -> None:
    """Write the figure in each format, its numbers and its facts; each file whole or not at all."""
    text = json.dumps(facts)
    metadata = {
        "pdf": {
            "Title": facts["title"],
            "Subject": facts["command"],
            "Keywords": text,
            "Creator": f"stability {__version__}",
            "CreationDate": None,  # the same runs give the same bytes
        },
        "png": {
            "Title": facts["title"],
            "Description": text,
            "Software": f"stability {__version__}",
        },
    }
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        with styled():
            for form in formats:
                with atomic.writing(stem.with_name(f"{stem.name}.{form}")) as file:
                    figure.savefig(file, format=form, metadata=metadata[form])
        with atomic.writing(stem.with_name(f"{stem.name}.csv"), "w") as file:
            numbers.to_csv(file, index=False)
        atomic.write_json(stem.with_name(f"{stem.name}.json"), facts)
    except OSError as error:
        raise Unreadable(f"{stem.parent}: cannot write ({error.strerror})") from error


if __name__ == "__main__":
    sys.exit(main())
