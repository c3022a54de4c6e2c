"""The points of a figure with their places in the picture, so that a page can show their values."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

MAX_POINTS = 4000
"""Points of a panel that are kept; of more only every n-th."""


class _Look(NamedTuple):
    """How a line looks, as far as a legend tells lines apart."""

    colour: str
    dash: str
    marker: str


def panels(figure: Figure) -> list[dict[str, Any]]:
    """The panels of a figure that was drawn, so that its layout is known.

    Returns:
        For each panel its ``box`` (left, top, right, bottom), titles of its axes, and ``points``:
        rows of place (x, y), values (x, y), and the name in the legends; for a map also the value
        of the colour. Places are fractions of the picture's width and height, from its upper left
        corner.
    """
    groups = [_entries(legend) for legend in reversed(figure.legends)]  # from the top
    return [found for ax in figure.axes if (found := _panel(figure, ax, groups)) is not None]


def _panel(figure: Figure, ax: Axes, groups: list[dict[_Look, str]]) -> dict[str, Any] | None:
    points = [*_of_lines(ax, groups), *_of_maps(ax)]
    if not points or not ax.get_visible():
        return None
    left, bottom, width, height = ax.get_position().bounds
    size = figure.bbox.size
    step = -(-len(points) // MAX_POINTS)
    return {
        "box": [_short(v) for v in (left, 1 - bottom - height, left + width, 1 - bottom)],
        "x": ax.get_xlabel(),
        "y": ax.get_ylabel(),
        "points": [
            [_short(px / size[0]), _short(1 - py / size[1]), *values]
            for (px, py), values in points[::step]
        ],
    }


Point = tuple[tuple[float, float], list[Any]]
"""Place in pixels, and what is said of it."""


def _of_lines(ax: Axes, groups: list[dict[_Look, str]]) -> Iterator[Point]:
    for line in ax.lines:
        if line.get_transform() != ax.transData or not line.get_visible():
            continue  # a guide
        name = line.get_gid() if _is_word(line.get_gid()) else _name(line, groups)
        x, y = (np.asarray(v, dtype=float) for v in line.get_data())
        places = ax.transData.transform(np.column_stack([x, y]))
        inside = np.isfinite(places).all(axis=1)
        for place, *values in zip(places[inside], x[inside], y[inside], strict=True):
            if ax.bbox.contains(*place):
                yield tuple(place), [float(values[0]), float(values[1]), name]


def _of_maps(ax: Axes) -> Iterator[Point]:
    for mesh in ax.collections:
        values = mesh.get_array() if isinstance(mesh, QuadMesh) else None
        if values is None or np.ma.getmaskarray(values).all():
            continue
        corners = np.asarray(mesh.get_coordinates())  # type: ignore[attr-defined]
        centres = (corners[:-1, :-1] + corners[1:, 1:]) / 2
        shown = np.ma.masked_invalid(np.ma.asarray(values).reshape(centres.shape[:2]))
        for at in np.argwhere(~np.ma.getmaskarray(shown)):
            x, y = (float(v) for v in centres[tuple(at)])
            place = ax.transData.transform((x, y))
            yield tuple(place), [x, y, "", float(shown[tuple(at)])]


def _entries(legend: Legend) -> dict[_Look, str]:
    """Look -> name of a legend whose entries differ in their looks."""
    named = zip(legend.legend_handles, legend.get_texts(), strict=True)
    return {_look(h): text.get_text() for h, text in named if isinstance(h, Line2D)}


def _name(line: Line2D, groups: Iterable[dict[_Look, str]]) -> str:
    """What the legends call a line: of each legend the entry that looks like it."""
    look, found = _look(line), []
    for entries in groups:
        telling = [i for i in range(len(look)) if len({each[i] for each in entries}) > 1]
        for each, name in entries.items():
            if telling and all(each[i] == look[i] for i in telling):
                found.append(name)
    return ", ".join(dict.fromkeys(found))


def _look(line: Line2D) -> _Look:
    return _Look(to_hex(line.get_color()), str(line.get_linestyle()), str(line.get_marker()))


def _is_word(gid: str | None) -> bool:
    """Whether the id of a line names it; a single sign is a marker."""
    return gid is not None and len(gid.strip("$")) > 1


def _short(value: float) -> float:
    return round(float(value), 5)
