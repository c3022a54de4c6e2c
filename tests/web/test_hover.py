"""The values that a page shows under the pointer lie where the picture has them."""

import math

import numpy as np
import pytest
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D

from stability.figures.drawing import notebook
from stability.figures.drawing.page import Page
from stability.web import hover

RED, BLUE = "#ff0000", "#0000ff"


@pytest.fixture
def page():
    """Two panels: lines on a log axis, and a map."""
    made = Page(2, 2, 6.75)
    left, right = made.axes
    left.plot([1, 2, 4], [1.0, 10.0, 100.0], color=RED, linestyle="-", marker="o", label="a")
    left.plot([1, 2, 4], [2.0, math.nan, 1e9], color=BLUE, linestyle="--", marker="o")
    left.plot([1, 4], [3.0, 3.0], color="k", gid="theory at infinite width")
    left.axhline(5.0)
    left.set(xlabel="block $l$", ylabel="variance", yscale="log", ylim=(0.5, 200))
    values = np.ma.masked_invalid([[1.0, 2.0, np.nan], [3.0, 4.0, 5.0]])
    right.pcolormesh([0, 1, 2, 3], [0, 1, 2], values, norm=LogNorm(1, 5))
    made.legends = [
        [Line2D([], [], color=c, label=n) for c, n in ((RED, "Pre-LN"), (BLUE, "Post-LN"))],
        [Line2D([], [], color="k", linestyle=s, label=n) for s, n in (("-", "6"), ("--", "24"))],
        [Line2D([], [], marker="o", linestyle="none", label="embedding")],
    ]
    return made


@pytest.fixture
def image(page):
    figure = page.close()
    return figure, notebook.pixels(figure)


def test_a_point_is_where_its_marker_is_drawn(image):
    figure, pixels = image
    left, _ = hover.panels(figure)
    height, width, _ = pixels.shape
    red = [point for point in left["points"] if point[4] == "Pre-LN, 6"]
    assert [point[2:4] for point in red] == [[1.0, 1.0], [2.0, 10.0], [4.0, 100.0]]
    for x, y, *_ in red:
        around = pixels[round(y * height) - 1 : round(y * height) + 2, round(x * width)]
        assert (around[:, 0] > 200).all() and (around[:, 1] < 80).all()


def test_lines_have_the_names_of_all_legends_and_theory_its_own(image):
    left, _ = hover.panels(image[0])
    names = {point[4] for point in left["points"]}
    assert names == {"Pre-LN, 6", "Post-LN, 24", "theory at infinite width"}
    assert (left["x"], left["y"]) == ("block $l$", "variance")


def test_what_is_not_drawn_has_no_value(image):
    left, _ = hover.panels(image[0])
    blue = [point for point in left["points"] if point[4] == "Post-LN, 24"]
    assert [point[2:4] for point in blue] == [[1.0, 2.0]]  # NaN, and above the axis
    assert not any(point[3] == 5.0 for point in left["points"])  # a guide


def test_a_cell_of_a_map_has_its_value_in_its_middle(image):
    figure, pixels = image
    _, right = hover.panels(figure)
    found = {(x, y): value for _, _, x, y, _, value in right["points"]}
    places = [(0.5, 0.5), (1.5, 0.5), (0.5, 1.5), (1.5, 1.5), (2.5, 1.5)]
    assert found == dict(zip(places, [1.0, 2.0, 3.0, 4.0, 5.0], strict=True))
    height, width, _ = pixels.shape
    colours = {
        value: tuple(pixels[round(y * height), round(x * width)])
        for x, y, *_, value in right["points"]
    }
    assert len(set(colours.values())) == 5


def test_places_lie_inside_the_box_of_their_panel(image):
    for panel in hover.panels(image[0]):
        left, top, right, bottom = panel["box"]
        assert 0 <= left < right <= 1 and 0 <= top < bottom <= 1
        for x, y, *_ in panel["points"]:
            assert left - 1e-4 <= x <= right + 1e-4 and top - 1e-4 <= y <= bottom + 1e-4


def test_of_many_points_every_nth_is_kept():
    made = Page(1, 1, 6.75)
    made.axes[0].plot(np.arange(3 * hover.MAX_POINTS), np.arange(3 * hover.MAX_POINTS))
    figure = made.close()
    notebook.png(figure)
    (panel,) = hover.panels(figure)
    assert len(panel["points"]) == hover.MAX_POINTS
