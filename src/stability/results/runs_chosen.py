"""The runs of a sweep that have given values of keys."""

from collections.abc import Sequence

import pandas as pd

from stability.results.atomic import Unreadable
from stability.results.sweep_rows import SweepRows


def only(runs: SweepRows, asked: Sequence[str]) -> SweepRows:
    """The runs that satisfy each ``KEY=VALUE,VALUE``.

    Args:
        runs: a row per run.
        asked: what is typed.

    Raises:
        Unreadable: a text is of another form, no run has the key, or none has one of the values.
    """
    frame = runs.frame
    for text in asked:
        key, equals, values = text.partition("=")
        if not equals or not values:
            raise Unreadable(f"--only {text}: must be KEY=VALUE or KEY=VALUE,VALUE")
        if key not in frame:
            raise Unreadable(f"--only {text}: no such key; what varies: {', '.join(runs.axes)}")
        kept = frame[_has(frame[key], values.split(","))]
        if kept.empty:
            known = ", ".join(map(str, frame[key].drop_duplicates()))
            raise Unreadable(f"--only {text}: no run has it; {key} is one of {known}")
        frame = kept
    return runs.with_frame(frame)


def _has(column: pd.Series, values: Sequence[str]) -> pd.Series:
    """Whether a value is one of those typed: numbers as numbers, all else as it is written."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return column.isin(pd.to_numeric(pd.Series(values), errors="coerce").dropna())
    return column.astype(str).str.lower().isin([value.lower() for value in values])
