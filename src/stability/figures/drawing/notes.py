"""What the notes below a figure say: seeds, diverged runs, remarks on the sweep."""

from collections.abc import Sequence

import pandas as pd

from stability.figures.drawing.variants import label, levels, name, variant
from stability.results.sweep_rows import SweepRows

MAX_LISTED = 6
MAX_NAMED = 8
"""Variants whose diverged runs are named one by one."""


def caption(runs: SweepRows) -> str:
    """Which nets: ``nets: d = 64, L = 6 and 24, init xavier, 150 steps, 3 seeds; ...``.

    Args:
        runs: a row per run.
    """
    frame = runs.frame
    models = frame["label"].dropna().unique() if "label" in frame else []
    said = [_listed(models) if len(models) else ""]
    for key in ("model.width", "depth", "init"):
        values = [v for v in levels(runs, key) if not pd.isna(v)] if key in frame else []
        shown = [int(v) if key != "init" else label(runs, key, v) for v in values]
        called = name(key) + (" " if key == "init" else " = ")
        said.append(called + _listed(shown) if shown else "")
    steps, seeds = int(frame["steps_done"].max()), int(frame["seed"].nunique())
    said += ["at init" if steps == 0 else f"{steps} steps", f"{seeds} seed{'s' * (seeds > 1)}"]
    what = ", ".join(filter(None, said))
    return "nets: " + "; ".join(filter(None, [what, _learned(frame, steps)]))


def _learned(frame: pd.DataFrame, steps: int) -> str:
    """Whether the nets have learned, by their loss against the unigram entropy."""
    known = frame["learned"].dropna().astype(bool)
    if known.empty or not steps:
        return ""
    if known.all():
        return f"after {steps} steps, learned"
    short = f"{(~known).sum()} of {len(known)} runs " if known.any() else ""
    return f"after {steps} steps, {short}not yet learned"


def _listed(values: Sequence[object]) -> str:
    """``1, 2 and 3``; of many the first and the last."""
    if len(values) > MAX_LISTED:
        return f"{values[0]} to {values[-1]} ({len(values)} values)"
    *most, last = map(str, values)
    return f"{', '.join(most)} and {last}" if most else last


def outcome_notes(rows: SweepRows) -> list[str]:
    """Every variant with diverged runs, by name: ``Post-LN, L = 96: 1 of 3 diverged``."""
    if "diverged" not in rows.frame:
        return []
    variants = rows.variants()
    bad = variants[variants["diverged"] > 0]
    said = []
    for _, row in bad.iterrows():
        name = variant(rows, row)
        count = f"{row['diverged']:.0f} of {row['runs']:.0f} diverged"
        said.append(f"{name}: {count}" if name else count)
    if len(said) > MAX_NAMED:
        more = bad.iloc[MAX_NAMED:]
        count = f"{more['diverged'].sum():.0f} of {more['runs'].sum():.0f}"
        said[MAX_NAMED:] = [f"{len(more)} more variants: {count}"]
    return ["; ".join(said) + "."] if said else []


def remark_notes(rows: SweepRows) -> list[str]:
    """The remarks on the runs as a whole, as sentences."""
    return [f"{remark[0].upper()}{remark[1:]}." for remark in rows.remarks]


def seed_note(rows: SweepRows, centre: str, what: str = "Lines") -> list[str]:
    """What lines and bands are, where there is more than one seed."""
    most, fewest = int(rows.frame["runs"].max()), int(rows.frame["runs"].min())
    if most < 2:
        return []
    count = str(most) if most == fewest else f"{fewest} to {most}"
    bands = "; bands: their range" if what == "Lines" else ""
    return [f"{what}: {centre} of {count} seeds{bands}."]
