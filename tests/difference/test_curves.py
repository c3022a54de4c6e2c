"""Curves of two sides over each other."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from stability.difference import curves
from stability.difference.numbers import Stat, last_common_step
from stability.difference.pairing import pair, read_sides
from stability.results import parquet as tables
from synthetic import write_run

VARIANCE = Stat("act", "var")


def drawn(a, b, stat=VARIANCE):
    """The numbers, and the figure that is drawn of them."""
    sides = read_sides(a, b)
    cells = pair(*sides).cells
    steps = [last_common_step(cell, *sides) for cell in cells]
    found = curves.curves(cells, steps, stat)
    return found, curves.draw(found, sides, cells, steps, stat)


@pytest.fixture
def sides(tmp_path):
    for name, norm in (("a", "pre"), ("b", "post")):
        for seed in range(3):
            write_run(tmp_path / name, {"norm": norm, "seed": seed}, steps=21)
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def lines(ax, gid):
    return [line for line in ax.lines if line.get_gid() == gid]


def texts(figure):
    return " ".join(t.get_text() for t in figure.texts)


def test_the_numbers_are_those_of_the_tables(sides):
    found, _ = drawn(*sides)
    (folder,) = [f for f in sides[0].iterdir() if "seed-1_" in f.name]
    mine = found[(found["run"] == folder.name) & (found["side"] == "a")]
    steps = tables.read(folder, "steps", ["step", "loss"]).to_pandas()
    loss = mine[mine["quantity"] == "loss"].sort_values("x")
    assert loss["value"].tolist() == pytest.approx(steps["loss"].tolist())
    layers = tables.read(folder, "layers").to_pandas()
    ends = layers[(layers["kind"] == "act") & (layers["site"] == "resid_post")]
    ends = ends[(ends["step"] == 20) & (ends["sublayer"] == "mlp")].sort_values("layer")
    depth = mine[(mine["quantity"] == "act.var") & (mine["x"] > 0)].sort_values("x")
    assert depth["value"].tolist() == pytest.approx(ends["var"].tolist())
    assert set(found["side"]) == {"a", "b"} and set(found["window"].dropna()) == {1}


def test_a_thick_line_is_the_median_of_thin_ones(sides):
    found, figure = drawn(*sides)
    left, right = figure.axes[:2]
    for ax, quantity in ((left, "loss"), (right, "act.var")):
        assert len(lines(ax, "seed")) == 6
        for side in "ab":
            (line,) = lines(ax, side)
            own = found[(found["quantity"] == quantity) & (found["side"] == side)]
            assert list(line.get_ydata()) == own.groupby("x")["value"].median().tolist()
    assert "thin: each of up to 3 seeds" in texts(figure)
    assert right.get_yscale() == "log" and left.get_yscale() == "linear"
    assert left.get_ylabel() == "loss" and right.get_ylabel() == "variance of $x_l$"


def test_one_seed_has_one_line_and_no_note_on_seeds(tmp_path):
    for name, norm in (("a", "pre"), ("b", "post")):
        write_run(tmp_path / name, {"norm": norm, "seed": 0}, steps=5)
    _, figure = drawn(tmp_path / "a", tmp_path / "b")
    assert not lines(figure.axes[0], "seed") and len(lines(figure.axes[0], "a")) == 1
    assert "seeds" not in texts(figure)


def test_the_loss_of_a_long_run_is_a_mean_over_steps_and_the_figure_says_so(tmp_path):
    steps = 3 * curves.POINTS
    for name, norm in (("a", "pre"), ("b", "post")):
        write_run(tmp_path / name, {"norm": norm, "seed": 0}, steps=steps, every=steps)
    found, figure = drawn(tmp_path / "a", tmp_path / "b")
    assert found["window"].max() == 3
    assert "Loss: mean over 3 steps." in texts(figure)


def test_only_the_first_variants_are_drawn_and_the_figure_says_so(tmp_path):
    for name in "ab":
        for depth in range(2, 4 + curves.MAX_CELLS):
            write_run(tmp_path / name, {"depth": depth}, steps=1)
    found, figure = drawn(tmp_path / "a", tmp_path / "b")
    shown = [ax for ax in figure.axes if ax.lines]
    assert len(shown) == 2 * curves.MAX_CELLS
    assert found["cell"].nunique() == curves.MAX_CELLS + 2
    assert f"First {curves.MAX_CELLS} of {curves.MAX_CELLS + 2} variants." in texts(figure)
    assert shown[0].get_title() == "depth=2" and shown[1].get_title() == "at step 0"


def test_a_panel_without_a_number_says_none(sides):
    found, _ = drawn(*sides)
    read = read_sides(*sides)
    cells = pair(*read).cells
    nothing = found.assign(value=found["value"].where(found["quantity"] == "loss"))
    figure = curves.draw(nothing, read, cells, [20], VARIANCE)
    assert "none" in [t.get_text() for t in figure.axes[1].texts]
    assert not figure.axes[1].lines and figure.axes[0].lines


def test_a_statistic_with_a_number_that_is_not_positive_has_a_linear_axis(sides):
    found, _ = drawn(*sides)
    read = read_sides(*sides)
    cells = pair(*read).cells
    shifted = found.assign(value=pd.to_numeric(found["value"]) - found["value"].median())
    assert curves.draw(shifted, read, cells, [20], VARIANCE).axes[1].get_yscale() == "linear"
