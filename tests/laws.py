"""Closed forms of a linear stack without norms, f(x) = W x, that tests hold the theory to."""

import math


def exponential_growth(sublayers: float, gain: float) -> float:
    """Var(x_n) / Var(x_0) = (1 + d sigma_w^2)^n without norms; gain = d sigma_w^2."""
    return (1 + gain) ** sublayers


def growth_spread(sublayers: float, gain: float, width: int) -> float:
    """Relative standard deviation over seeds of Var(x_n), for one token.

    |x + W x|^2 has the relative variance (4 g + 2 g^2) / (d (1 + g)^2), and it adds up: O(L/d).
    """
    step = (4 * gain + 2 * gain**2) / (width * (1 + gain) ** 2)
    return math.sqrt(math.expm1(sublayers * math.log1p(step)))
