"""What tells variants apart in a figure: a colour, a dash and a mark, or a panel of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.lines import Line2D

from stability.figures.drawing import style

MAX_LINES = 12
"""Lines that one panel holds; beyond, an axis of the sweep gets panels of its own."""
MAX_DASHES = 4


@dataclass(frozen=True)
class Roles:
    """What tells variants apart: colour, dash and mark, or a panel of their own."""

    colour: str | None
    dash: str | None
    facets: list[str]


def roles(frame: pd.DataFrame, without: Sequence[str] = ()) -> Roles:
    """Names take colours before numbers do; a second axis takes dashes while lines stay few."""
    axes = [a for a in style.axes_of(frame) if a not in without and frame[a].nunique() > 1]
    axes.sort(key=lambda a: style.is_number(frame, a))
    if not axes:
        return Roles(None, None, [])
    colour, *rest = axes
    lines = frame[colour].nunique()
    for axis in rest:
        n = frame[axis].nunique()
        if n <= MAX_DASHES and n * lines <= MAX_LINES:
            return Roles(colour, axis, [a for a in rest if a != axis])
    return Roles(colour, None, rest)


def facets(frame: pd.DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    """The combinations of these axes that occur, in legend order."""
    if not names:
        return [{}]
    rank = {a: {v: i for i, v in enumerate(style.levels(frame, a))} for a in names}
    seen = frame[list(names)].drop_duplicates().to_dict("records")
    return sorted(seen, key=lambda f: [rank[a].get(f[a], -1) for a in names])


def part(frame: pd.DataFrame, where: dict[str, Any]) -> pd.DataFrame:
    """Rows whose columns have these values."""
    for name, value in where.items():
        frame = frame[frame[name] == value]
    return frame


def title(frame: pd.DataFrame, where: dict[str, Any]) -> str:
    """The values of a facet as a panel's title."""
    return ", ".join(style.label(frame, axis, value) for axis, value in where.items())


def key(frame: pd.DataFrame, r: Roles) -> list[list[Artist]]:
    """Legends: one row of colours, one of dashes; nothing where nothing varies."""
    looks = marks(frame, r)
    rows: list[list[Artist]] = []
    for axis in (r.colour, r.dash):
        if axis:
            values = style.levels(frame, axis)
            if style.is_number(frame, axis) and len(values) > MAX_LINES:  # a ramp needs no more
                values = [values[i * (len(values) - 1) // 5] for i in range(6)]
            names = [style.label(frame, axis, v) for v in values]
            pairs = [(v, None) if axis == r.colour else (None, v) for v in values]
            rows.append(
                [Line2D([], [], label=n, **looks(*p)) for n, p in zip(names, pairs, strict=True)]
            )
    return rows


def marks(frame: pd.DataFrame, r: Roles) -> Any:
    """(value of the colour axis, value of the dash axis) -> how its line looks."""
    colours = style.colours(frame, r.colour)
    names = style.slots(frame, r.colour) if r.colour else {}
    dashes = style.levels(frame, r.dash) if r.dash else []

    def looks(hue: Any, dash: Any) -> dict[str, Any]:
        place = names.get(hue, 0)
        dashed = dashes.index(dash) if dash is not None else place // len(style.COLOURS)
        mark = (dashes.index(dash) if dash is not None else None) if r.dash else place
        return {
            "color": colours.get(hue, style.GREY),
            "linestyle": style.DASHES[dashed % len(style.DASHES)],
            "marker": None if mark is None else style.MARKERS[mark % len(style.MARKERS)],
        }

    return looks
