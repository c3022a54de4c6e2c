"""Statistics of few numbers: least-squares lines, AIC, intervals of Student's t."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

LAWS = ("exponential", "power")
"""Laws of growth with two parameters: ln y = a + b x, and ln y = a + b ln x."""

CLOSE = 0.01
"""Root mean square of ln y against a law, below which the law fits."""


class Line(NamedTuple):
    """y = intercept + slope x by least squares, and the sum of squares it leaves."""

    slope: float
    intercept: float
    rss: float
    n: int

    @property
    def aic(self) -> float:
        """The criterion n ln(rss / n) + 2 k with k = 2, for normal errors; lower is better."""
        tiny = np.finfo(float).tiny
        return self.n * math.log(max(self.rss / self.n, tiny)) + 4


def line(x: ArrayLike, y: ArrayLike) -> Line:
    """The least-squares line through points.

    About the means, so that points on a line leave no more than rounding: AIC takes the logarithm
    of what is left.

    Raises:
        ValueError: fewer than two different x, or a value that is not finite.
    """
    a, b = np.asarray(x, float), np.asarray(y, float)
    if len(np.unique(a)) < 2 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("a line needs finite values at two places at least")
    da, db = a - a.mean(), b - b.mean()
    slope = float(da @ db / (da @ da))
    return Line(
        slope, float(b.mean() - slope * a.mean()), float(((db - slope * da) ** 2).sum()), len(a)
    )


def exponent(x: ArrayLike, y: ArrayLike) -> float:
    """The b of the power law y = c x^b, fitted on log-log axes."""
    return line(*_logs(x, y)).slope


def aic(law: str, x: ArrayLike, y: ArrayLike) -> float:
    """AIC of a law of growth fitted to ln y: the laws compete on the same numbers."""
    log_x, log_y = _logs(x, y)
    return line({"exponential": np.asarray(x, float), "power": log_x}[law], log_y).aic


def better_law(x: ArrayLike, y: ArrayLike) -> tuple[str, Line]:
    """The law of growth that fits better, and its line through ln y.

    Exponential where its AIC is lower by 2 or more, as is usual; else the power law. Deviations
    below `CLOSE` count as `CLOSE`, so that rounding does not choose between two laws that fit.
    """
    log_x, log_y = _logs(x, y)
    power, exponential = line(log_x, log_y), line(np.asarray(x, float), log_y)
    a, b = (f._replace(rss=max(f.rss, f.n * CLOSE**2)).aic for f in (power, exponential))
    return ("exponential", exponential) if a - b >= 2 else ("power", power)


def _logs(x: ArrayLike, y: ArrayLike) -> tuple[Any, Any]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.asarray(x, float)), np.log(np.asarray(y, float))


@lru_cache
def student(level: float, df: int) -> float:
    """The t with P(abs(T) <= t) = level, for Student's T with df degrees of freedom."""
    from scipy.special import stdtrit  # commands that need no interval start without scipy

    return float(stdtrit(df, (1 + level) / 2))


class Interval(NamedTuple):
    """A mean over seeds with the ends of its confidence interval."""

    mean: float
    low: float
    high: float


def t_interval(values: Sequence[float], level: float = 0.95, geometric: bool = False) -> Interval:
    """Mean and t-interval over seeds.

    mean +- t s / sqrt(n), s the standard deviation with n - 1. If geometric, all of it is computed
    from the logarithms, and the ends are exponentials of what comes out.

    Raises:
        ValueError: fewer than two values.
    """
    if len(values) < 2:
        raise ValueError("an interval needs two values")
    x = np.log(values) if geometric else np.asarray(values, float)
    mean = float(x.mean())
    half = student(level, len(x) - 1) * float(x.std(ddof=1)) / math.sqrt(len(x))
    found = (mean, mean - half, mean + half)
    return Interval(*(math.exp(v) for v in found)) if geometric else Interval(*found)


def share_interval(count: int, of: int, level: float = 0.95) -> Interval:
    """A share of seeds with its exact interval, from the quantiles of two beta distributions.

    Source: Clopper and Pearson 1934.

    Raises:
        ValueError: no seed.
    """
    from scipy.special import betaincinv

    if of < 1:
        raise ValueError("a share needs a seed")
    tail = (1 - level) / 2
    low = float(betaincinv(count, of - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, of - count, 1 - tail)) if count < of else 1.0
    return Interval(count / of, low, high)


def slope_margin(x: ArrayLike, fit: Line, level: float = 0.95) -> float:
    """Half the confidence interval of a fitted slope: t sqrt(rss / (n - 2) / sum (x - mean)^2).

    Raises:
        ValueError: fewer than three points.
    """
    if fit.n < 3:
        raise ValueError("the interval of a slope needs three points")
    spread = float(((np.asarray(x, float) - np.mean(np.asarray(x, float))) ** 2).sum())
    return student(level, fit.n - 2) * math.sqrt(fit.rss / (fit.n - 2) / spread)


def welch_interval(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Interval:
    """Mean of b minus mean of a for unpaired samples, with Welch's interval.

    The variances may differ: t has the degrees of freedom of Welch and Satterthwaite, rounded down.
    Source: Welch 1947.

    Raises:
        ValueError: fewer than two values in either.
    """
    if min(len(a), len(b)) < 2:
        raise ValueError("an interval needs two values of each")
    x, y = np.asarray(a, float), np.asarray(b, float)
    u, v = (float(z.var(ddof=1)) / len(z) for z in (x, y))
    mean = float(y.mean() - x.mean())
    if u + v == 0:
        return Interval(mean, mean, mean)
    df = (u + v) ** 2 / (u**2 / (len(x) - 1) + v**2 / (len(y) - 1))
    half = student(level, max(1, math.floor(df))) * math.sqrt(u + v)
    return Interval(mean, mean - half, mean + half)
