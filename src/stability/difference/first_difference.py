"""The first step and place at which two runs are not the same to the last bit, and how far apart.

The rows of the layers table follow each other in the order of execution: the first row of a step
that differs is where the difference came from.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from stability.config.names import Key
from stability.results import parquet as tables
from stability.results.schema import LAYER_KEY
from stability.results.statistics import FIELDS

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

PLACE = [name for name in LAYER_KEY if name != "run"]
STATISTICS = {field.name: field.is_count for field in FIELDS}
"""Column of the layers table -> whether it counts entries."""
OF_STEPS = ("loss", "val_loss", "grad_norm")
"""Columns of the steps table that are compared; the others are settings or times."""
OF_RUNS = ("final_loss", "final_val_loss")


class Value(NamedTuple):
    """A number that differs, and where it is."""

    place: str
    a: float
    b: float
    relative: float
    """\\|a - b\\| over the scale of the number, see `relative`."""


@dataclass(frozen=True)
class Difference:
    """How one pair of runs differs."""

    loss: Value | None
    """The first step whose loss differs."""
    layers: Value | None
    """The first statistic that differs, in the order of execution."""
    largest: Value | None
    """The largest relative difference of any number; None where no number differs."""
    unshared: tuple[str, ...]
    """What only one of the two has, in words."""
    columns: pd.DataFrame
    """The largest relative difference of each statistic."""

    @property
    def is_none(self) -> bool:
        """Whether all numbers are the same bit for bit, and neither has more of them."""
        return self.largest is None and not self.unshared

    def is_within(self, tolerance: float) -> bool:
        """Whether no relative difference exceeds a tolerance; 0 asks for the same bits."""
        if tolerance == 0 or self.largest is None or self.unshared:
            return self.is_none
        return self.largest.relative <= tolerance


@dataclass(frozen=True)
class Tables:
    """The tables of one run, in the order of steps."""

    layers: pd.DataFrame
    steps: pd.DataFrame

    @classmethod
    def read(cls, run: Path) -> "Tables":
        layers = tables.read(run, "layers").to_pandas()
        steps = tables.read(run, "steps", ["step", *OF_STEPS]).to_pandas()
        by_step = (f.sort_values("step", kind="stable") for f in (layers, steps))
        return cls(*(f.reset_index(drop=True) for f in by_step))


class _Compared(NamedTuple):
    """Numbers of two runs at the same places: rows by columns."""

    place: Callable[[int], str]
    """Where a row is, in words."""
    names: list[str]
    a_RC: Array
    b_RC: Array
    relative_RC: Array
    differs_RC: np.ndarray[Any, np.dtype[np.bool_]]

    def value(self, row: int, column: int) -> Value:
        return Value(
            f"{self.place(row)}{self.names[column]}",
            *(float(x[row, column]) for x in (self.a_RC, self.b_RC, self.relative_RC)),
        )

    def first(self) -> Value | None:
        rows = np.flatnonzero(self.differs_RC.any(axis=1))
        return self.value(rows[0], int(self.differs_RC[rows[0]].argmax())) if len(rows) else None

    def largest(self) -> Value | None:
        if not self.differs_RC.any():
            return None
        hidden = np.where(self.differs_RC, self.relative_RC, -1.0)
        row, column = np.unravel_index(int(hidden.argmax()), hidden.shape)
        return self.value(int(row), int(column))


def difference(a: Tables, b: Tables, finals: pd.DataFrame) -> Difference:
    """How two runs differ.

    Args:
        a: the tables of one.
        b: those of the other.
        finals: `OF_RUNS` of both, a row for each.
    """
    layers, only_rows = _layers(a.layers, b.layers)
    steps, only_steps = _steps(a.steps, b.steps)
    ends = _ends(finals)
    found = [v for part in (layers, *steps.values(), *ends) if (v := part.largest())]
    largest = max(found, key=lambda value: value.relative, default=None)
    most = layers.relative_RC.max(axis=0, initial=0.0)
    return Difference(
        steps["loss"].first(),
        layers.first(),
        largest,
        (*only_steps, *only_rows),
        pd.DataFrame({"statistic": layers.names, "largest relative difference": most}),
    )


def _layers(a: pd.DataFrame, b: pd.DataFrame) -> tuple[_Compared, list[str]]:
    """The statistics at the places that both have, and what only one has."""
    names = [n for n in STATISTICS if a[n].notna().any() and b[n].notna().any()]
    plain = [f.astype({n: str for n in PLACE if n not in ("step", "layer")}) for f in (a, b)]
    turn = [f.assign(turn=f.groupby(PLACE).cumcount()) for f in plain]
    merged = turn[0].merge(turn[1], on=[*PLACE, "turn"], how="inner", suffixes=("_a", "_b"))

    def place(row: int) -> str:
        step, *where, kind = merged[PLACE].iloc[row]
        return f"step {step}, {Key(*where)}, {kind}, "

    a_RC, b_RC = (_matrix(merged, [f"{n}_{s}" for n in names]) for s in "ab")
    scale_RC = np.maximum(*(_scales(m, names) for m in (a_RC, b_RC)))
    unshared = _only("recorded steps", a["step"], b["step"])
    alone = [len(f[f["step"].isin(o["step"])]) - len(merged) for f, o in ((a, b), (b, a))]
    unshared += [
        f"{n} rows of common steps are only in {s}" for n, s in zip(alone, "AB", strict=True) if n
    ]
    return _compared(place, names, a_RC, b_RC, scale_RC), unshared


def _steps(a: pd.DataFrame, b: pd.DataFrame) -> tuple[dict[str, _Compared], list[str]]:
    merged = a.merge(b, on="step", suffixes=("_a", "_b"))
    found = {}
    for name in OF_STEPS:
        known = merged[merged[[f"{name}_a", f"{name}_b"]].notna().any(axis=1)]
        a_RC, b_RC = (_matrix(known, [f"{name}_{s}"]) for s in "ab")
        at = known["step"].to_list()
        found[name] = _compared(_of_step(at), [name], a_RC, b_RC, np.fmax(abs(a_RC), abs(b_RC)))
    return found, _only("steps", a["step"], b["step"])


def _of_step(steps: list[int]) -> Callable[[int], str]:
    return lambda row: f"step {steps[row]}, "


def _ends(finals: pd.DataFrame) -> list[_Compared]:
    found = []
    for name in OF_RUNS:
        a_RC, b_RC = finals[[name]].to_numpy(float)[:, None]
        found.append(_compared(lambda row: "", [name], a_RC, b_RC, np.fmax(abs(a_RC), abs(b_RC))))
    return found


def _compared(
    place: Callable[[int], str], names: list[str], a_RC: Array, b_RC: Array, scale_RC: Array
) -> _Compared:
    both_nan = np.isnan(a_RC) & np.isnan(b_RC)
    same_bits = np.ascontiguousarray(a_RC).view(np.int64) == np.ascontiguousarray(b_RC).view(
        np.int64
    )
    differs = ~(same_bits | both_nan)
    return _Compared(place, names, a_RC, b_RC, relative(a_RC, b_RC, scale_RC), differs)


def relative(a: Array, b: Array, scale: Array) -> Array:
    """The distance of a and b over the scale.

    It is 0 where the numbers are equal, and infinite where one is not finite.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = np.abs(a - b) / scale
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(equal, 0.0, np.where(np.isfinite(found), found, np.inf))


def _scales(numbers_RC: Array, names: list[str]) -> Array:
    """What a difference of each number is relative to.

    A magnitude to itself; a mean, which may cancel, to the rms; a share to 1; a count to the
    number of entries.
    """
    of = dict(zip(names, numbers_RC.T, strict=True))
    ones = np.ones(len(numbers_RC))
    scales = {name: of["numel"] if count else abs(of[name]) for name, count in STATISTICS.items()
              if name in of}  # fmt: skip
    scales |= {"mean": of.get("rms", ones), "first_share": ones}
    return np.nan_to_num(np.stack([scales[name] for name in names], axis=1), nan=0.0)


def _matrix(frame: pd.DataFrame, columns: list[str]) -> Array:
    return frame[columns].to_numpy(dtype=float, na_value=np.nan)


def _only(what: str, a: "pd.Series[int]", b: "pd.Series[int]") -> list[str]:
    """Steps that only one of the two has, in words."""
    sets = set(a), set(b)
    said = []
    for name, own in (("A", sets[0] - sets[1]), ("B", sets[1] - sets[0])):
        if own:
            text = str(min(own)) if len(own) == 1 else f"{min(own)} to {max(own)}"
            said.append(f"{len(own)} {what} ({text}) are only in {name}")
    return said
