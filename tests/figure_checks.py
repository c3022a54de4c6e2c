"""What figures must show, computed slowly from a run's files; texts of a drawn figure."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from stability.results.sweep_rows import SweepRows
from synthetic import row_of

BAD_STEP, BAD_LAYER = 30, 1
"""Where one seed of the sweep diverges."""


def seeds_of(sweep: Path, norm: str, depth: int, table: str = "layers") -> list[pd.DataFrame]:
    """The rows of each seed of a variant, straight from its files."""
    found = []
    for folder in sorted(p for p in sweep.iterdir() if p.is_dir()):
        config = row_of(folder)
        if (config["norm"], config["depth"]) == (norm, depth):
            found.append(pd.read_parquet(folder / f"{table}.parquet"))
    assert len(found) == 3
    return found


def of_variant(rows: SweepRows, norm: str, depth: int, **where: object) -> pd.DataFrame:
    """The numbers of a variant, those with these values."""
    frame = rows.frame
    for name, value in {"norm": norm, "depth": depth, **where}.items():
        frame = frame[frame[name] == value]
    assert len(frame)
    return frame


def values_at(seeds: list[pd.DataFrame], column: str, step: int, **where: object) -> list[float]:
    """The one value of each seed that has the step, that is, of a seed's last step if step < 0."""
    found = []
    for seed in seeds:
        rows = seed[seed["step"] == (seed["step"].max() if step < 0 else step)]
        for name, value in where.items():
            rows = rows[rows[name] == value]
        found += rows[column].tolist()
    return found


def at_init(rows: SweepRows) -> SweepRows:
    """The numbers at init, in place of a theory."""
    return rows.with_frame(rows.frame[rows.frame["when"] == "at init"])


def legend_texts(figure: Figure) -> list[str]:
    return [t.get_text() for box in figure.legends for t in box.get_texts()]
