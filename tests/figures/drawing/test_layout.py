"""The layout of line panels: which panel shows what, where, and between which limits."""

from collections.abc import Mapping, Sequence
from itertools import product

import pandas as pd
import pytest

from stability.figures.drawing.layout import Chart, Quantity, layout
from stability.figures.drawing.page import MAX_PANELS
from stability.results.sweep_rows import Option, SweepRows

NORMS = {"norm": {"pre": Option("Pre-LN", 0), "post": Option("Post-LN", 1)}}
SIZE = {"size": Quantity("size")}


def rows_of(
    axes: Mapping[str, Sequence[object]], across: int = 1, when: Sequence[str] = ("start", "end")
) -> SweepRows:
    """Numbers of a full grid: 1 everywhere, at two points of each line."""
    columns = [*axes, "weight", "when", "x"]
    values = [*axes.values(), [f"w{i}" for i in range(across)], when, [1, 2]]
    frame = pd.DataFrame(product(*values), columns=columns)
    frame["when"] = pd.Categorical(frame["when"], when)
    frame = frame.assign(quantity="size", value=1.0, low=1.0, high=1.0, runs=1, diverged=0)
    return SweepRows(frame, tuple(axes), NORMS)


def chart_of(**changes: object) -> Chart:
    settings = {"quantities": SIZE, "x": "block", "across": "weight", "down": "when"}
    return Chart(**{**settings, **changes})


def test_a_grid_has_titles_and_labels_at_its_edges_alone() -> None:
    plan = layout(rows_of({"norm": ["pre", "post"]}, across=3), chart_of(), 6.75)
    assert (plan.grid.columns, plan.grid.aligned, plan.grid.turned) == (3, True, False)
    assert [panel.title for panel in plan.panels] == ["w0", "w1", "w2", "", "", ""]
    assert [panel.beside for panel in plan.panels] == ["", "", "start", "", "", "end"]
    assert [plan.is_lowest(place) for place in range(6)] == [False] * 3 + [True] * 3
    assert [plan.has_own_scale(place) for place in range(6)] == [True, False, False] * 2


def test_a_grid_too_wide_for_the_page_is_turned() -> None:
    plan = layout(rows_of({"norm": ["pre", "post"]}, across=8), chart_of(), 6.75)
    assert plan.grid.turned and plan.grid.columns == 2
    assert [panel.title for panel in plan.panels[:3]] == ["start", "end", ""]
    assert [panel.beside for panel in plan.panels[:4]] == ["", "w0", "", "w1"]
    assert [panel.where["weight"] for panel in plan.panels[:4]] == ["w0", "w0", "w1", "w1"]


@pytest.mark.parametrize(("width", "columns"), [(3.25, 2), (5.5, 2), (6.75, 4)])
def test_panels_that_make_no_grid_follow_each_other_with_whole_titles(
    width: float, columns: int
) -> None:
    axes = {"norm": ["pre", "post"], "depth": range(1, 9)}
    plan = layout(rows_of(axes, across=2), chart_of(), width)
    assert (plan.grid.columns, plan.grid.aligned) == (columns, False)
    titles = [panel.title for panel in plan.panels[:4]]
    assert titles == ["L = 1\nstart\nw0", "L = 1\nstart\nw1", "L = 1\nend\nw0", "L = 1\nend\nw1"]
    assert {panel.beside for panel in plan.panels} == {""}


def test_every_panel_shows_its_own_rows_and_no_others() -> None:
    axes = {"norm": ["pre", "post"], "depth": range(1, 9)}
    rows = rows_of(axes, across=2)
    plan = layout(rows, chart_of(), 6.75)
    assert sum(len(panel.frame) for panel in plan.panels) == len(rows.frame)
    for panel in plan.panels:
        for column, value in (panel.facet | panel.where).items():
            assert set(panel.frame[column]) == {value}
        curves = plan.curves(panel.frame)
        assert [set(curve.frame["norm"]) for curve in curves] == [{"pre"}, {"post"}]
        assert [list(curve.frame["x"]) for curve in curves] == [[1, 2], [1, 2]]


def test_a_page_holds_whole_rows_of_at_most_sixty_panels() -> None:
    axes = {"norm": ["pre", "post"], "depth": range(1, 41)}
    plan = layout(rows_of(axes, across=2), chart_of(), 5.5)
    assert plan.total == 160
    assert len(plan.panels) == MAX_PANELS // plan.grid.columns * plan.grid.columns


def test_panels_of_a_row_share_limits_and_each_row_has_its_own() -> None:
    rows = rows_of({"norm": ["pre", "post"]}, across=2)
    late = rows.frame["when"] == "end"
    frame = rows.frame.assign(high=rows.frame["high"].where(~late, 1e4))
    plan = layout(rows.with_frame(frame), chart_of(), 6.75)
    limits = [panel.limits for panel in plan.panels]
    assert limits[0] == limits[1] != limits[2] == limits[3]
    assert limits[0][1] < 10 < 1e4 < limits[2][1]


def test_variants_of_which_every_run_diverged_do_not_set_limits() -> None:
    rows = rows_of({"norm": ["pre", "post"]})
    bad = rows.frame["norm"] == "post"
    frame = rows.frame.assign(value=rows.frame["value"].mask(bad, 1e30), diverged=bad.astype(int))
    assert layout(rows.with_frame(frame), chart_of(), 6.75).panels[0].limits[1] < 10
    alone = frame[bad]
    assert layout(rows.with_frame(alone), chart_of(), 6.75).panels[0].limits[1] > 1e30


@pytest.mark.parametrize(("guide", "shown"), [(1e5, True), (1e7, False)])
def test_a_guide_within_six_decades_lies_inside_the_limits(guide: float, shown: bool) -> None:
    size = Quantity("size", guides=lambda rows: [(guide, "limit")])
    plan = layout(rows_of({}), chart_of(quantities={"size": size}), 6.75)
    assert (plan.panels[0].limits[1] > guide) == shown


def test_a_quantity_with_limits_of_its_own_keeps_them() -> None:
    share = Quantity("share", log=False, limits=(0.0, 1.0))
    plan = layout(rows_of({}), chart_of(quantities={"size": share}), 6.75)
    assert {panel.limits for panel in plan.panels} == {(0.0, 1.0)}


def test_an_axis_left_to_x_gets_no_lines() -> None:
    axes = {"norm": ["pre", "post"], "depth": [1, 2]}
    plan = layout(rows_of(axes), chart_of(without=("depth",)), 6.75)
    assert (plan.looks.roles.colour, plan.looks.roles.dash) == ("norm", None)
