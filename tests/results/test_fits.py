"""Statistics against closed forms, SciPy, and numbers that were put in."""

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from stability.results.fits import (
    CLOSE,
    Line,
    aic,
    better_law,
    exponent,
    line,
    share_interval,
    slope_margin,
    student,
    t_interval,
)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 9, 10, 19, 40])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_students_t_is_scipys(df, level):
    assert student(level, df) == pytest.approx(stats.t.ppf(0.5 + level / 2, df), rel=1e-9)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_students_t_is_that_of_its_closed_forms(level):
    assert student(level, 1) == pytest.approx(math.tan(math.pi * level / 2))
    assert student(level, 2) == pytest.approx(level * math.sqrt(2 / (1 - level**2)))
    root = math.sqrt(1 - level**2)
    of_four = 2 * math.sqrt(math.cos(math.acos(root) / 3) / root - 1)
    assert student(level, 4) == pytest.approx(of_four)


def test_a_geometric_interval_is_that_of_the_logarithms():
    values = [1.0, 2.5, 0.3, 4.0, 2.2]
    logs = t_interval([math.log(v) for v in values], 0.9)
    assert t_interval(values, 0.9, geometric=True) == pytest.approx([math.exp(v) for v in logs])


def test_the_margin_of_a_slope_is_that_of_scipys_standard_error():
    x, y = [1.0, 2.0, 4.0, 8.0, 9.0], [0.3, 1.9, 2.2, 5.0, 4.1]
    known = stats.linregress(x, y)
    margin = stats.t.ppf(0.975, 3) * known.stderr
    assert slope_margin(x, line(x, y)) == pytest.approx(margin)
    with pytest.raises(ValueError, match="three points"):
        slope_margin(x[:2], line(x[:2], y[:2]))


def test_one_value_has_no_interval():
    with pytest.raises(ValueError, match="two values"):
        t_interval([1.0])
    assert t_interval([1.0, 1.0]) == (1.0, 1.0, 1.0)


def test_scipy_is_loaded_with_the_first_interval_and_not_before():
    code = """
import sys
from stability.results.fits import t_interval
assert "scipy" not in sys.modules
t_interval([1.0, 2.0])
assert "scipy.special" in sys.modules and "scipy.stats" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_interval_is_scipys():
    values = [1.0, 2.5, 0.3, 4.0, 2.2]
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert t_interval(values) == pytest.approx((np.mean(values), low, high))


def test_an_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = [t_interval(rng.standard_normal(5)) for _ in range(4000)]
    assert np.mean([low <= 0 <= high for _, low, high in found]) == pytest.approx(0.95, abs=0.01)


def test_a_line_is_numpys():
    x, y = np.arange(7.0), np.array([1.0, 3, 2, 5, 4, 8, 7])
    found = line(x, y)
    assert (found.slope, found.intercept) == pytest.approx(np.polyfit(x, y, 1))
    assert found.rss == pytest.approx(((y - np.polyval(np.polyfit(x, y, 1), x)) ** 2).sum())


def test_an_exponent_comes_back():
    x = np.arange(1.0, 20)
    assert exponent(x, 3 * x**-0.5) == pytest.approx(-0.5)


def test_the_aic_of_a_line_is_that_of_normal_errors():
    found = line([0, 1, 2, 3], [0.0, 1.5, 1.5, 3.0])
    assert (found.rss, found.n) == (pytest.approx(0.45), 4)
    assert found.aic == pytest.approx(4 * math.log(0.45 / 4) + 2 * 2)
    assert math.isfinite(line([0, 1, 2], [0.0, 0.0, 0.0]).aic)


def test_the_aic_of_a_law_is_that_of_its_line_through_the_logarithms():
    x, y = np.arange(1.0, 9), np.array([1.0, 3, 2, 5, 4, 8, 7, 9])
    assert aic("exponential", x, y) == line(x, np.log(y)).aic
    assert aic("power", x, y) == line(np.log(x), np.log(y)).aic


@pytest.mark.parametrize(("size", "law"), [(0.5 * CLOSE, "power"), (3 * CLOSE, "exponential")])
def test_a_power_law_is_kept_where_both_laws_fit_closely(size, law):
    x = np.array([1.0, 2, 3, 4, 5, 6])
    off = x - np.polyval(np.polyfit(np.log(x), x, 1), np.log(x))
    rate = size / math.sqrt((off**2).mean())  # so far from a power law is exp(rate x)
    assert better_law(x, np.exp(rate * x))[0] == law


def test_aic_tells_laws_apart():
    x = np.arange(1.0, 25)
    assert aic("exponential", x, 2 * 1.3**x) < aic("power", x, 2 * 1.3**x)
    assert aic("power", x, 2 * x**1.3) < aic("exponential", x, 2 * x**1.3)


@pytest.mark.parametrize("noise", [0, 1e-3])
@pytest.mark.parametrize("law", [lambda x: 3 * x**0.4, lambda x: 3 * x**-2.0, np.ones_like])
def test_what_follows_a_power_law_is_not_called_exponential(law, noise):
    x = np.array([6.0, 24, 96])
    name, fit = better_law(x, law(x) * np.exp(noise * np.array([1, -1, 1])))
    assert name == "power"
    assert fit.slope == pytest.approx(exponent(x, law(x)), abs=2 * noise + 1e-12)


@pytest.mark.parametrize("rate", [0.9, 0.05, -0.3])
def test_exponential_growth_is_no_power_law(rate):
    name, fit = better_law([6, 24, 96], 1e-4 * np.exp(rate * np.array([6, 24, 96])))
    assert name == "exponential"
    assert (fit.slope, fit.intercept) == pytest.approx((rate, np.log(1e-4)))


@pytest.mark.parametrize(("x", "y"), [([1], [2]), ([1, 1], [2, 3]), ([1, 2], [1, np.inf])])
def test_a_line_needs_two_finite_places(x, y):
    with pytest.raises(ValueError, match="two places"):
        line(x, y)


def test_the_criterion_is_akaikes_and_finite_for_a_perfect_line():
    assert Line(1.0, 0.0, rss=6.0, n=3).aic == pytest.approx(3 * np.log(2) + 4)
    assert Line(1.0, 0.0, rss=0.0, n=3).aic == pytest.approx(3 * np.log(np.finfo(float).tiny) + 4)


def test_a_line_counts_its_points():
    assert line([1, 2, 2, 4], [0, 1, 1, 3]) == pytest.approx((1, -1, 0, 4), abs=1e-12)


@pytest.mark.parametrize(("x", "y"), [([1, 2, np.nan], [1, 2, 3]), ([1, 2], [np.nan, 1])])
def test_a_value_that_is_not_finite_makes_no_line(x, y):
    with pytest.raises(ValueError, match="finite"):
        line(x, y)


def test_the_better_law_is_exponential_from_a_lead_of_2_on():
    """With a third law in between, the residuals of both are above what counts as a fit."""
    x = np.array([1.0, 2, 4, 8, 16])
    leads, names = [], []
    for share in np.linspace(0, 1, 41):
        y = np.exp(share * 0.5 * x + (1 - share) * 2 * np.log(x))
        power, exponential = line(np.log(x), np.log(y)), line(x, np.log(y))
        if min(power.rss, exponential.rss) > 5 * 0.01**2:
            leads.append(power.aic - exponential.aic)
            names.append(better_law(x, y)[0])
    assert min(leads) < 0 < max(leads)
    assert any(0 < lead < 2 for lead in leads)
    assert names == ["exponential" if lead >= 2 else "power" for lead in leads]


def test_an_interval_needs_two_values():
    with pytest.raises(ValueError, match="two values"):
        t_interval([1.0])
    assert t_interval([1.0, 3.0]).mean == 2


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [(5, 5, 0.4782, 1.0), (0, 5, 0.0, 0.5218), (14, 20, 0.4572, 0.8811), (1, 2, 0.0126, 0.9874)],
)
def test_a_share_has_the_interval_of_clopper_and_pearson(count, of, low, high):
    found = share_interval(count, of)
    assert found == pytest.approx((count / of, low, high), abs=5e-5)
    with pytest.raises(ValueError, match="a share needs a seed"):
        share_interval(0, 0)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_ends_of_a_shares_interval_leave_half_of_the_rest_on_each_side(level):
    """By the definition: with the upper end as probability, at most so many is that unlikely."""

    def at_most(count, of, p):
        return sum(math.comb(of, k) * p**k * (1 - p) ** (of - k) for k in range(count + 1))

    _, low, high = share_interval(7, 12, level)
    assert at_most(7, 12, high) == pytest.approx((1 - level) / 2)
    assert 1 - at_most(6, 12, low) == pytest.approx((1 - level) / 2)
