"""Which axis of a sweep gets colours, dashes or panels."""

from itertools import product

import pandas as pd
import pytest

from stability.figures.drawing import style
from stability.figures.drawing.variant_looks import Look, looks, roles
from stability.results.sweep_rows import SweepRows


@pytest.mark.parametrize(
    ("levels", "colour", "dash", "facets"),
    [
        ({}, None, None, []),
        ({"norm": 3}, "norm", None, []),
        ({"depth": 6}, "depth", None, []),
        ({"depth": 3, "norm": 4}, "norm", "depth", []),
        ({"norm": 3, "depth": 6}, "norm", None, ["depth"]),
        ({"norm": 3, "depth": 2, "init": 5, "dtype": 2}, "norm", "dtype", ["init", "depth"]),
    ],
)
def test_twelve_lines_share_a_panel_and_more_are_split(
    levels: dict[str, int], colour: str | None, dash: str | None, facets: list[str]
) -> None:
    cells = product(*(range(n) for n in levels.values()))
    frame = pd.DataFrame(cells, columns=list(levels))
    for axis in set(levels) - {"depth"}:
        frame[axis] = frame[axis].map(str)
    axes = tuple(a for a in ("norm", "init", "depth", "dtype") if a in levels)
    found = roles(SweepRows(frame, axes))
    assert (found.colour, found.dash, sorted(found.facets)) == (colour, dash, sorted(facets))


def looks_of(frame: pd.DataFrame, *axes: str) -> dict[tuple[object, ...], Look]:
    rows = SweepRows(frame, axes)
    by = roles(rows)
    made = looks(rows, by)
    pairs = frame[[axis for axis in (by.colour, by.dash) if axis]].itertuples(index=False)
    return {tuple(p): made.look(p[0], p[1] if by.dash else None) for p in pairs}


def test_the_dash_axis_sets_dash_and_mark_and_the_colour_axis_the_colour() -> None:
    frame = pd.DataFrame(product(["a", "b"], [2, 4]), columns=["norm", "depth"])
    found = looks_of(frame, "norm", "depth")
    assert {look.color for (norm, _), look in found.items() if norm == "b"} == {style.COLOURS[1]}
    for place, depth in enumerate((2, 4)):
        own = [look for (_, value), look in found.items() if value == depth]
        assert {look.linestyle for look in own} == {style.DASHES[place]}
        assert {look.marker for look in own} == {style.MARKERS[place]}


def test_variants_beyond_the_colours_have_another_dash_and_marks_follow_the_colour() -> None:
    names = [f"n{i:02d}" for i in range(12)]
    found = [look for _, look in sorted(looks_of(pd.DataFrame({"norm": names}), "norm").items())]
    count = len(style.COLOURS)
    assert [look.marker for look in found] == list(style.MARKERS[:12])
    assert found[count].color == found[0].color
    assert {look.linestyle for look in found[:count]} == {style.DASHES[0]}
    assert {look.linestyle for look in found[count:]} == {style.DASHES[1]}
