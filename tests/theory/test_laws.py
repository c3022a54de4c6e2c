"""The closed forms that the theory is held to, against draws."""

import math

import numpy as np
import pytest

import laws


def test_the_growth_and_the_spread_of_a_linear_stack_are_those_of_draws():
    d, n, g = 32, 4, 0.5
    rng, ends = np.random.default_rng(0), []
    for _ in range(3000):
        x = np.ones(d)
        for _ in range(n):
            x = x + rng.standard_normal((d, d)) @ x * math.sqrt(g / d)
        ends.append(np.mean(x * x))
    assert np.mean(ends) == pytest.approx(laws.exponential_growth(n, g), rel=0.03)
    spread = np.std(ends) / np.mean(ends)
    assert spread == pytest.approx(laws.growth_spread(n, g, d), rel=0.08)
