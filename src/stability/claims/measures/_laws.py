"""The laws that derivations on paper arrive at, each under its name: closed forms of depth.

They assume a linear branch f(x) = W x, or a branch of known variance, and infinite width.
`stability.theory` assumes neither.
"""

import math
from collections.abc import Iterable


def exponential_growth(sublayers: float, gain: float) -> float:
    """Var(x_n) / Var(x_0) = (1 + d sigma_w^2)^n without norms, and |delta_0|^2 / |delta_n|^2.

    gain = d sigma_w^2, the variance of the branch over that of its input.
    """
    return (1 + gain) ** sublayers


def linear_growth(sublayers: float, start: float, step: float = 1.0) -> float:
    """Var(x_n) = Var(x_0) + n with Pre-LN and std 1/sqrt(d); step = variance of a branch."""
    return start + sublayers * step


def sigma_growth(blocks: float, start: float, step: float) -> float:
    """sigma(x_l) of Pre-LN: the root of linear growth, hence l^(1/2) once l is large."""
    return math.sqrt(linear_growth(blocks, start, step))


def jacobian_product(sigmas: Iterable[float]) -> float:
    """Product of 1 / sigma over the norms that a gradient passes: what Post-LN is said to cost."""
    return 1 / math.prod(sigmas)


def compounded(gain: float, layers: int) -> float:
    """A gain of the rms per layer after so many layers: 0.9^99 = 2.95e-5, 1.1^99 = 1.25e4."""
    return gain**layers


def residual_scaled_growth(start: float, total: float) -> float:
    """Var(x_L) = Var(x_0) + total whatever L, where 1/sqrt(2L) on residual projections divides."""
    return start + total


def overflow_sublayer(largest: float, start: float, gain: float, entries: int) -> float:
    """First sublayer of a linear stack without norms whose activation exceeds a dtype's maximum.

    2 ln(max / (z sigma_0)) / ln(1 + gain), where z = sqrt(2 ln N) - (ln ln N + ln 4 pi) /
    (2 sqrt(2 ln N)) + 0.5772 / sqrt(2 ln N) is the expected maximum of N magnitudes: those of
    ``entries`` normals, so N = 2 entries.

    Args:
        largest: of the dtype, 65504 for fp16.
        start: sigma_0.
        gain: d sigma_w^2.
        entries: numbers in the tensor.
    """
    n = 2 * math.log(2 * entries)
    z = math.sqrt(n) - (math.log(n / 2) + math.log(4 * math.pi) - 2 * 0.5772) / (2 * math.sqrt(n))
    return 2 * math.log(largest / (z * start)) / math.log(1 + gain)


def growth_spread(sublayers: float, gain: float, width: int, square_cosine: float = 1.0) -> float:
    """Relative standard deviation over seeds of Var(x_n) of a linear stack without norms.

    |x + W x|^2 has the relative variance (4 g + 2 g^2) / (d (1 + g)^2) for one token. All tokens
    see the same W, so their mean falls with the mean squared cosine only. It adds up: O(L/d).
    """
    step = (4 * gain + 2 * gain**2) / (width * (1 + gain) ** 2)
    return math.sqrt(math.expm1(sublayers * math.log1p(step * square_cosine)))
