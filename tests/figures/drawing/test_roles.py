"""Which axis of a sweep gets colours, dashes or panels."""

from itertools import product

import pandas as pd
import pytest

from stability.figures.drawing.roles import roles
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
