"""Axes that stay readable whatever the numbers."""

import math

import pytest

from stability.figures.drawing.scales import log_limits, short


@pytest.mark.parametrize(
    ("value", "text"),
    [(65504, "65504"), (0.05, "0.05"), (1e-8, "$10^{-8}$"), (2.0**-14, "$6.1\\times10^{-5}$")],
)
def test_numbers_in_labels_are_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize("values", [[], [math.nan], [0.0], [math.inf, -1], [5e-324, 1e308], [1.0]])
def test_log_limits_are_usable_whatever_the_values(values: list[float]) -> None:
    low, high = log_limits(values)
    assert 0 < low < high < math.inf
