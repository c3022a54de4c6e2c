"""Variants of a sweep as figures name, order and select them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from stability.config.knobs import GROUPS
from stability.results.sweep_rows import SweepRows

NAMES = {"depth": "L", "train.lr": "lr", "model.width": "d", "model.context": "T"}
"""Axes with a symbol; others are called by the last part of their key."""

Facet = dict[str, Any]
"""Column -> value: which rows a panel shows."""


def is_number(rows: SweepRows, axis: str) -> bool:
    """Whether an axis is a quantity (depth, learning rate) rather than a name."""
    column = rows.frame[axis]
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def varying_axes(rows: SweepRows, without: Sequence[str] = ()) -> list[str]:
    """The axes that vary among these rows: names before numbers, the main ones first."""
    frame = rows.frame
    axes = [a for a in rows.axes if a not in without and frame[a].nunique() > 1]
    return sorted(axes, key=lambda axis: is_number(rows, axis))


def levels(rows: SweepRows, column: str) -> list[Any]:
    """Values of an axis, or of another column, in legend order."""
    values = rows.frame[column]
    if isinstance(values.dtype, pd.CategoricalDtype):
        seen = set(values.dropna())
        return [v for v in values.cat.categories if v in seen]
    order = {name: option.order for name, option in rows.options.get(column, {}).items()}
    if order or not pd.api.types.is_numeric_dtype(values):
        return sorted(values.dropna().unique(), key=lambda v: (order.get(v, len(order)), str(v)))
    return sorted(values.dropna().unique())


def name(axis: str) -> str:
    """An axis as legends call it."""
    return NAMES[axis] if axis in NAMES else axis.rpartition(".")[2].replace("_", " ")


def label(rows: SweepRows, axis: str, value: Any) -> str:
    """A value of an axis as legends call it: its label, ``name = value``, a switch's name."""
    options = rows.options.get(axis, {})
    if str(value) in options:
        return options[str(value)].label
    if axis in GROUPS or axis in ("dtype", "label", "sweep", "stack", "block"):
        return str(value)
    if isinstance(value, bool | np.bool_):
        return name(axis) if value else f"not {name(axis)}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name(axis)} = {text}"


def title(rows: SweepRows, facet: Mapping[str, Any]) -> str:
    """The values of some axes as a panel's title: ``Post-LN, L = 96``."""
    return ", ".join(label(rows, axis, value) for axis, value in facet.items())


def variant(rows: SweepRows, row: pd.Series) -> str:
    """A row's values of the axes that vary: ``Post-LN, L = 96``."""
    return title(rows, {a: row[a] for a in rows.axes if rows.frame[a].nunique() > 1})


def facets(rows: SweepRows, columns: Sequence[str]) -> list[Facet]:
    """The combinations of values of these columns that occur, in legend order."""
    if not columns:
        return [{}]
    rank = {c: {v: i for i, v in enumerate(levels(rows, c))} for c in columns}
    seen = rows.frame[list(columns)].drop_duplicates().to_dict("records")
    return sorted(seen, key=lambda facet: [rank[c].get(facet[c], -1) for c in columns])


def part(frame: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """Rows whose columns have these values."""
    for column, value in where.items():
        frame = frame[frame[column] == value]
    return frame
