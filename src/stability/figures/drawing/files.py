"""A figure on disk: PDF, PNG or SVG, the numbers it draws (csv), what it was made from (json)."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing.style import styled
from stability.results import atomic
from stability.results.atomic import Unreadable
from stability.results.sweep_rows import SweepRows
from stability.shell import package_version, version_text


def origin(command: str, module: ModuleType, sweep: SweepRows) -> dict[str, Any]:
    """What a figure was made from: command, code, runs and data.

    Args:
        command: what was typed.
        module: the figure.
        sweep: a row per run.
    """
    assert module.__doc__
    runs = sweep.frame
    return {
        "title": module.__doc__.splitlines()[0].rstrip("."),
        "figure": module.__name__.rpartition(".")[2],
        "command": command,
        "stability": package_version(),
        "git": sorted({_revision(r) for r in runs.to_dict("records")} - {""}),
        "runs": sorted(runs["run"]),
        "seeds": int(runs["seed"].nunique()),
        "statuses": {s: int(n) for s, n in sorted(runs["status"].value_counts().items())},
        "data_sha256": sorted(runs["data.sha256"].dropna().unique()),
        "warnings": list(sweep.remarks),
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
            "Creator": version_text(),
            "CreationDate": None,  # the same runs give the same bytes
        },
        "png": {
            "Title": facts["title"],
            "Description": text,
            "Software": version_text(),
        },
        "svg": {
            "Title": facts["title"],
            "Description": text,
            "Creator": version_text(),
            "Date": None,
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
