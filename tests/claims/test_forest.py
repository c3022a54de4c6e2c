"""The forest plot of a claim's findings."""

import math
from dataclasses import replace

import pytest

from stability.claims import forest
from stability.claims.criterion import Criterion, Range
from stability.claims.evaluate import Finding
from stability.claims.verdict import FAILS, HOLDS, NOT_MEASURED, REPORTED
from stability.figures.drawing.select import CannotDraw


def test_a_forest_has_a_panel_per_measure_and_criterion_and_a_line_per_number():
    names = "last_ratio", "overflow_block", "first_overflow"
    above_1 = Criterion(Range(1.0, math.inf))
    base = Finding("c", "GPT", "", names[0], above_1, HOLDS, 2.0, low=1.5, high=2.5, theory=2.1,
        given={"axis": "norm_type", "of": "post", "to": "pre"},
    )  # fmt: skip
    findings = [
        replace(base, setting="a"),
        replace(base, setting="b", verdict=FAILS, value=0.5, theory=None),
        replace(base, measure=names[1], criterion=None, value=3.0, given={}),
        replace(base, measure=names[2], value="attn scores"),
    ]
    first, second = forest.draw(findings).axes
    assert "Var" in first.get_xlabel() and "holds: >= 1" in first.get_xlabel()
    assert "post over pre" in first.get_xlabel()
    assert "first block $l$" in second.get_xlabel() and "reported" in second.get_xlabel()
    assert [t.get_text() for t in first.get_yticklabels()] == ["a", "b"]
    assert [t.get_text() for t in second.get_yticklabels()] == ["GPT"]
    assert len([line for line in first.lines if line.get_marker() == "|"]) == 1
    (band,) = first.patches
    assert band.get_x() == pytest.approx(1.0)
    with pytest.raises(CannotDraw):
        forest.draw(findings[3:])


def panel_of(*findings):
    """The axes and the key of a plot with one panel."""
    figure = forest.draw(findings)
    (ax,) = figure.axes
    return ax, [text.get_text() for text in figure.legends[0].get_texts()]


GIVEN = {"axis": "norm_type", "of": "post", "to": "pre"}
BASE = Finding("c", "GPT", "a", "last_ratio", None, REPORTED, 2.0, low=1.0, high=3.0, given=GIVEN)


def test_a_panel_is_logarithmic_where_its_numbers_span_a_factor_of_more_than_thirty():
    for value, scale in ((30.0, "linear"), (30.1, "log")):
        ax, _ = panel_of(BASE, replace(BASE, value=value))
        assert ax.get_xscale() == scale
        left, right = ax.get_xlim()
        assert left < 1.0 and right > value
    ax, _ = panel_of(replace(BASE, low=-1.0, high=100.0))
    assert ax.get_xscale() == "linear"
    ax, _ = panel_of(replace(BASE, criterion=Criterion(Range(-math.inf, 90.0))))
    assert ax.get_xscale() == "log" and ax.get_xlim()[1] > 90


def test_a_panel_has_a_margin_whatever_its_numbers_are():
    ax, _ = panel_of(replace(BASE, low=2.0, high=2.0))
    assert ax.get_xlim() == pytest.approx((2 - 0.12, 2 + 0.12))
    ax, _ = panel_of(replace(BASE, value=0.0, low=0.0, high=0.0))
    assert ax.get_xlim() == pytest.approx((-0.06, 0.06))
    ax, _ = panel_of(BASE)
    assert ax.get_xlim() == pytest.approx((1 - 0.12, 3 + 0.12))


def test_a_criterions_range_is_shaded_to_the_edge_and_its_finite_ends_are_lines():
    ax, key = panel_of(replace(BASE, criterion=Criterion(Range(1.5, math.inf)), verdict=FAILS))
    (band,) = ax.patches
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((1.5, ax.get_xlim()[1]))
    lines = [line for line in ax.lines if len(set(line.get_xdata())) == 1 < len(line.get_xdata())]
    assert [line.get_xdata()[0] for line in lines] == [1.5]
    assert key == ["fails", "holds here"]
    text = replace(BASE, criterion=Criterion(text="mlp"))
    ax, key = panel_of(text)
    assert (len(ax.patches), key) == (0, ["reported"])


def test_the_key_names_what_is_drawn():
    _, key = panel_of(replace(BASE, verdict=HOLDS, theory=1.5), replace(BASE, setting="b"))
    assert key == ["holds", "reported", "theory"]
    _, key = panel_of(replace(BASE, theory=math.nan))
    assert key == ["reported"]


def test_each_finding_is_a_mark_at_its_value_and_a_line_over_its_interval():
    ax, _ = panel_of(replace(BASE, theory=2.5), replace(BASE, setting="b", value=2.2))
    drawn = [(list(map(float, line.get_xdata())), line.get_marker()) for line in ax.lines]
    assert drawn == [
        ([1.0, 3.0], "None"), ([2.0], "s"), ([2.5], "|"), ([1.0, 3.0], "None"), ([2.2], "s"),
    ]  # fmt: skip
    heights = [line.get_ydata()[0] for line in ax.lines]
    assert heights == pytest.approx([0.5, 0.5, 0.5, 1.5, 1.5])
    assert list(ax.get_yticks()) == pytest.approx([0.5, 1.5])
    assert ax.get_ylim() == (2, 0)


def test_lines_are_named_by_setting_under_the_parts_name_or_by_both():
    ax, _ = panel_of(BASE, replace(BASE, setting="b"))
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b"]
    assert ax.get_title() == "GPT"
    ax, _ = panel_of(BASE, replace(BASE, part="small", setting=""))
    assert [t.get_text() for t in ax.get_yticklabels()] == ["GPT, a", "small"]
    assert ax.get_title() == ""


def test_a_plot_is_as_high_as_its_lines():
    def height(*findings):
        return forest.draw(findings).get_size_inches()[1]

    one, two = height(BASE), height(BASE, replace(BASE, setting="b"))
    assert two - one == pytest.approx(0.17)
    assert height(BASE, replace(BASE, setting="long " * 16)) - two == pytest.approx(0.17)
    said = panel_of(BASE)[0].get_xlabel().count("\n") + 1
    assert one == pytest.approx(0.5 + 0.12 * said + 0.17 + 0.25)
    assert height(BASE, replace(BASE, measure="spectral_error")) > one + 0.5


def test_what_was_not_measured_has_no_line():
    ax, _ = panel_of(BASE, replace(BASE, setting="b", verdict=NOT_MEASURED))
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a"]


def test_what_is_true_of_seeds_is_drawn_as_their_share():
    share = replace(BASE, measure="not_learned", value=0.7, low=0.4, high=0.9, count=14, seeds=20)
    ax, _ = panel_of(share)
    assert ax.get_xlabel().startswith("share of seeds that have not learned")


def test_the_range_in_which_a_criterion_fails_is_shaded_in_its_own_colour():
    criterion = Criterion(Range(0.5, math.inf), fails=Range(-math.inf, 0.1))
    ax, key = panel_of(replace(BASE, criterion=criterion, value=0.05, verdict=FAILS))
    holds, fails = ax.patches
    assert holds.get_x() == pytest.approx(0.5)
    assert fails.get_x() + fails.get_width() == pytest.approx(0.1)
    assert holds.get_facecolor() != fails.get_facecolor()
    assert key == ["fails", "holds here", "fails here"]


def test_parts_that_measure_different_things_have_panels_of_their_own():
    other = replace(BASE, given={**GIVEN, "of": "none"})
    assert len(forest.draw([BASE, replace(BASE, setting="b"), other]).axes) == 2
    tokens = [
        replace(BASE, measure="decay_per_block", given={"token": t}) for t in ("all", "median")
    ]
    (ax,) = forest.draw(tokens).axes
    assert r"\delta_{1}" in ax.get_xlabel()
