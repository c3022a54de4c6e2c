"""Numbers of two sides beside each other, their differences with 95% intervals."""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import pandas as pd

from stability.difference.first_difference import OF_RUNS
from stability.difference.pairing import Cell, Run, Side
from stability.results import parquet as tables
from stability.results.atomic import Unreadable
from stability.results.curated import at_three_blocks, curated
from stability.results.fits import Interval, t_interval, welch_interval
from stability.results.statistics import FIELDS

KINDS = ("act", "grad")
COLUMNS = [field.name for field in FIELDS if field.of != "updates" and field.name != "numel"]


class Stat(NamedTuple):
    """A statistic of the residual stream."""

    kind: str
    column: str

    @classmethod
    def parse(cls, text: str) -> "Stat":
        """``KIND.COLUMN``, such as ``grad.rms``.

        Raises:
            Unreadable: there is no such kind or column.
        """
        kind, _, column = text.partition(".")
        if kind not in KINDS or column not in COLUMNS:
            raise Unreadable(
                f"--stat {text}: must be KIND.COLUMN, KIND one of {', '.join(KINDS)}, "
                f"COLUMN one of {', '.join(COLUMNS)}"
            )
        return cls(kind, column)

    def __str__(self) -> str:
        return f"{self.kind}.{self.column}"


def last_common_step(cell: Cell, a: Side, b: Side) -> int:
    """The last step that all runs of a cell recorded.

    Raises:
        Unreadable: there is none.
    """
    steps = [_recorded_steps(run) for run in (*cell.a, *cell.b)]
    common = reduce(set.intersection, steps)
    if not common:
        where = f" of {cell.label}" if cell.label else ""
        raise Unreadable(f"{a.name} and {b.name} have no recorded step in common{where}")
    return max(common)


def _recorded_steps(run: Run) -> set[int]:
    return set(tables.read(run.path, "layers", ["step"])["step"].unique().to_pylist())


def table(cells: Sequence[Cell], steps: Sequence[int], stat: Stat) -> pd.DataFrame:
    """One row per variant and number.

    Columns: the variant's keys, ``number``, ``step`` (missing for the ``final_`` ones), the means
    ``a`` and ``b``, ``difference`` b - a with the ends ``low`` and ``high`` of its interval, how
    many ``pairs`` it is of, and whether it is ``paired``. The interval is Student's t of the
    differences of pairs, or Welch's where seeds have no partner; with one pair there is none.
    """
    rows = []
    for cell, step in zip(cells, steps, strict=True):
        sides = [[_numbers(run, step, stat) for run in side] for side in (cell.a, cell.b)]
        names = dict.fromkeys(name for side in sides for numbers in side for name in numbers)
        for name in names:
            a, b = ([numbers.get(name, math.nan) for numbers in side] for side in sides)
            found = _row(a, b, cell.is_paired)
            if found is not None:
                at = None if name in OF_RUNS else step
                rows.append({**cell.variant, "number": name, "step": at, **found})
    frame = pd.DataFrame(rows)
    return frame.astype({"step": "Int64"}) if len(frame) else frame


def _numbers(run: Run, step: int, stat: Stat) -> Mapping[str, float]:
    """A run's numbers at its end, and the curated ones and the statistic at a step."""
    rows = layers_at(run, step)
    (row,) = list(_steps_at(run, step)) or [{}]
    ends = {name: run.row.get(name) for name in OF_RUNS}
    numbers = {name: float(value) for name, value in ends.items() if value is not None}
    return numbers | curated(rows, row) | at_three_blocks(rows, *stat)


def layers_at(run: Run, step: int) -> pd.DataFrame:
    """The rows of the layers table at one step."""
    return tables.read(run.path, "layers", filter=tables.at_step(step)).to_pandas()


def _steps_at(run: Run, step: int) -> list[dict[str, float | None]]:
    found: list[dict[str, float | None]] = tables.read(
        run.path, "steps", filter=tables.at_step(step)
    ).to_pylist()
    return found


def _row(a: Sequence[float], b: Sequence[float], paired: bool) -> Mapping[str, object] | None:
    """Means and the difference over what is finite; None where neither side has the number."""
    if paired:
        pairs = [(x, y) for x, y in zip(a, b, strict=True) if math.isfinite(x - y)]
        kept = [x for x, _ in pairs], [y for _, y in pairs]
        found = _interval([y - x for x, y in pairs])
    else:
        kept = [x for x in a if math.isfinite(x)], [y for y in b if math.isfinite(y)]
        enough = min(map(len, kept)) > 1
        mean = _mean(kept[1]) - _mean(kept[0])
        found = welch_interval(*kept) if enough else Interval(mean, math.nan, math.nan)
    if all(math.isnan(x) for x in (*a, *b)):
        return None
    return {
        "a": _mean(kept[0]) if kept[0] else _mean(a),
        "b": _mean(kept[1]) if kept[1] else _mean(b),
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
        "pairs": min(map(len, kept)),
        "paired": paired,
    }


def _interval(differences: Sequence[float]) -> Interval:
    if len(differences) > 1:
        return t_interval(differences)
    return Interval(_mean(differences), math.nan, math.nan)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
