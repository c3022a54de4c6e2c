"""The named laws, against the numbers that they are quoted with and against draws."""

import math

import numpy as np
import pytest

from stability.claims.measures import _laws


def test_a_gain_compounds_over_a_hundred_layers():
    assert _laws.compounded(0.9, 99) == pytest.approx(2.95e-5, rel=5e-3)
    assert _laws.compounded(1.1, 99) == pytest.approx(1.25e4, rel=5e-3)


def test_growth_is_exponential_without_norms_and_linear_under_pre():
    assert _laws.exponential_growth(10, 1.0) == 1024
    assert _laws.linear_growth(10, 0.5) == 10.5
    assert _laws.sigma_growth(10_000, 0.0, 1.0) == 100
    assert _laws.residual_scaled_growth(1.0, 1.0) == 2
    assert _laws.jacobian_product([2.0, 4.0]) == 1 / 8


def test_the_spread_of_a_linear_stack_is_that_of_draws():
    d, n, g = 32, 4, 0.5
    rng, ends = np.random.default_rng(0), []
    for _ in range(3000):
        x = np.ones(d)
        for _ in range(n):
            x = x + rng.standard_normal((d, d)) @ x * math.sqrt(g / d)
        ends.append(np.mean(x * x))
    assert np.mean(ends) == pytest.approx(_laws.exponential_growth(n, g), rel=0.03)
    spread = np.std(ends) / np.mean(ends)
    assert spread == pytest.approx(_laws.growth_spread(n, g, d), rel=0.08)


def test_overflow_comes_where_the_largest_of_normals_passes_the_maximum():
    size, gain = 20_000, 0.5
    rng = np.random.default_rng(0)
    expected = np.mean([np.abs(rng.standard_normal(size)).max() for _ in range(300)])
    sublayer = _laws.overflow_sublayer(65504, 1.0, gain, size)
    assert expected * (1 + gain) ** (sublayer / 2) == pytest.approx(65504, rel=0.01)
