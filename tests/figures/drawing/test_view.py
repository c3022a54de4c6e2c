"""What the options of the plot command choose: the axis of layers, colour scales of maps."""

from pathlib import Path

import numpy as np
import pytest

from stability.figures import gradient_map, variance, weight_gradient
from stability.figures.drawing import style
from stability.figures.drawing.select import CannotDraw
from stability.figures.drawing.view import View, XScale, seen, view
from synthetic import numbers, write_run, write_sweep


def variance_axes(sweep: Path, x: XScale):
    with seen(View(x=x)):
        return variance.draw(numbers(sweep, variance)).axes


def drawn_x(ax) -> list[list[float]]:
    """The x of each line over blocks."""
    return [list(map(float, line.get_xdata())) for line in ax.lines if len(line.get_xdata()) > 1]


def test_nets_of_one_depth_have_a_linear_axis_of_blocks(tmp_path: Path) -> None:
    write_run(tmp_path, {"depth": 4}, steps=1)
    (ax,) = variance_axes(tmp_path, "auto")
    assert (ax.get_xscale(), ax.get_xlabel()) == ("linear", "block $l$")
    assert drawn_x(ax) == [[1, 2, 3, 4]]


def test_nets_of_several_depths_share_the_axis_as_a_fraction_of_depth(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"depth": [2, 8]}, steps=1)
    (ax,) = variance_axes(tmp_path, "auto")
    assert (ax.get_xscale(), ax.get_xlabel()) == ("linear", "depth $l/L$")
    assert drawn_x(ax) == [[0.5, 1.0], list(np.arange(1, 9) / 8)]


@pytest.mark.parametrize(
    ("x", "scale", "label", "last"),
    [
        ("layer", "linear", "block $l$", 8),
        ("fraction", "linear", "depth $l/L$", 1),
        ("log", "log", "block $l$ (log)", 8),
    ],
)
def test_the_axis_of_layers_is_the_one_asked_for(
    tmp_path: Path, x: XScale, scale: str, label: str, last: float
) -> None:
    write_sweep(tmp_path, {"depth": [2, 8]}, steps=1)
    (ax,) = variance_axes(tmp_path, x)
    assert (ax.get_xscale(), ax.get_xlabel()) == (scale, label)
    assert max(map(max, drawn_x(ax))) == last


def test_maps_share_one_colour_scale_unless_the_view_gives_each_row_its_own(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["none", "post"], "depth": [8, 16]}, steps=5, every=2)
    rows = numbers(tmp_path, gradient_map)

    def scales() -> set[tuple[float, float]]:
        return {
            mesh.get_clim() for ax in gradient_map.draw(rows).axes for mesh in ax.collections
            if ax.get_xlabel() == "step" or ax.get_title()
        }  # fmt: skip

    assert len(scales()) == 1
    with seen(View(own_colours=True)):
        assert len(scales()) == 2


def test_the_weights_asked_for_have_panels_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, {"depth": 2}, steps=1)
    rows = numbers(tmp_path, weight_gradient)
    with seen(View(weights=("mlp_out", "q"))):
        titles = [ax.get_title() for ax in weight_gradient.draw(rows).axes]
    assert titles == ["$W_2$", "$W_Q$"]
    with seen(View(weights=("gate",))), pytest.raises(CannotDraw, match="no weight gate recorded"):
        weight_gradient.draw(rows)


def test_an_axis_can_have_panels_instead_of_colours(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["pre", "post"]}, steps=1)
    rows = numbers(tmp_path, variance)
    assert len(variance.draw(rows).axes) == 1
    with seen(View(panels=("norm",))):
        panels = variance.draw(rows).axes
    assert len(panels) == 2
    colours = {line.get_color() for ax in panels for line in ax.lines}
    assert colours == {style.COLOURS[0]}


@pytest.mark.parametrize("chosen", [View(style="dark"), View(style="talk"), View(font="serif")])
def test_a_style_holds_within_its_view_alone(tmp_path: Path, chosen: View) -> None:
    write_run(tmp_path, {"depth": 2}, steps=1)
    rows = numbers(tmp_path, variance)

    def look() -> tuple[object, object, object]:
        figure = variance.draw(rows)
        label = figure.axes[0].yaxis.label
        return figure.get_facecolor(), label.get_fontsize(), label.get_fontfamily()

    before = look()
    with seen(chosen):
        changed = [a != b for a, b in zip(look(), before, strict=True)]
    assert changed == [chosen.style == "dark", chosen.style == "talk", chosen.font == "serif"]
    assert look() == before


def test_a_view_ends_with_its_block() -> None:
    with seen(View(x="log")):
        assert view().x == "log"
    assert view() == View()
