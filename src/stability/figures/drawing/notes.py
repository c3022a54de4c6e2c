"""What the notes below a figure say: seeds, diverged runs, remarks on the sweep."""

from stability.figures.drawing.variants import variant
from stability.results.sweep_rows import SweepRows

MAX_NAMED = 8
"""Variants whose diverged runs are named one by one."""


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
