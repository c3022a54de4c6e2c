"""The forest plot of a claim's findings."""

import math
from dataclasses import replace

import pytest

from stability.claims import forest
from stability.claims.criterion import Criterion, Range
from stability.claims.evaluate import Finding
from stability.claims.verdict import FAILS, HOLDS
from stability.figures.drawing.select import CannotFill


def test_a_forest_has_a_panel_per_measure_and_criterion_and_a_line_per_number():
    names = "last_ratio", "overflow_block", "first_overflow"
    above_1 = Criterion(Range(1.0, math.inf))
    base = Finding("c", "GPT", "", names[0], above_1, HOLDS, 2.0, low=1.5, high=2.5, theory=2.1)
    findings = [
        replace(base, setting="a"),
        replace(base, setting="b", verdict=FAILS, value=0.5, theory=None),
        replace(base, measure=names[1], criterion=None, value=3.0),
        replace(base, measure=names[2], value="attn scores"),
    ]
    first, second = forest.draw(findings).axes
    assert "Var(x_L)" in first.get_xlabel() and "criterion: >= 1" in first.get_xlabel()
    assert "Blocks passed" in second.get_xlabel() and "reported" in second.get_xlabel()
    assert [t.get_text() for t in first.get_yticklabels()] == ["a", "b"]
    assert [t.get_text() for t in second.get_yticklabels()] == ["GPT"]
    assert len([line for line in first.lines if line.get_marker() == "|"]) == 1
    (band,) = first.patches
    assert band.get_x() == pytest.approx(1.0)
    with pytest.raises(CannotFill):
        forest.draw(findings[3:])
