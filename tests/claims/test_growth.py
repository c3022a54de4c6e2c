"""Measures of growth against numbers that were put in."""

import math

import numpy as np
import pytest

from measure_rows import joined, measure, reason, rows, runs, stream


@pytest.mark.parametrize(
    ("quantity", "token", "expected"),
    [
        *(("variance", "all", 9), ("sigma", "all", 3), ("rms", "all", 3)),
        *(("gradient", "all", 5), ("gradient", "median", 7)),
    ],
)
def test_a_quantity_of_the_stream_is_that_of_the_blocks_outputs(quantity, token, expected):
    grad = stream([900.0, 2.0, 4.0, 10.0], "grad", median=[0.5, 1.0, 3.0, 7.0])
    layers = joined([stream([0.1, 1.0, 5.0, 9.0]), grad])
    found = measure("last_over_first", layers=layers, quantity=quantity, token=token)
    assert found == pytest.approx(expected)


def test_what_is_not_finite_is_not_measured_and_the_first_place_is_named():
    layers = stream([1.0, 2.0, 3.0, 4.0])
    layers.loc[(layers["layer"] >= 1) & (layers["site"] == "resid_post"), "nonfinite"] = 1
    said = "variance not finite, first after 2 blocks"
    assert reason("last_over_first", layers=layers, quantity="variance") == said
    layers = stream([1.0, 2.0, 0.0])
    assert reason("last_over_first", layers=layers) == "rms is 0, negative or not finite somewhere"


def test_an_exponent_is_fitted_from_its_start_without_the_embedding_if_asked():
    values = [5.0, 100.0, *(5 + 3 * n**1.5 for n in range(2, 9))]
    given = {"layers": stream(values), "start": 2, "less_embedding": True}
    assert measure("growth_exponent", **given) == pytest.approx(1.5)
    assert measure("growth_exponent", **{**given, "start": 1}) != pytest.approx(1.5, abs=0.1)
    assert measure("growth_exponent", **{**given, "less_embedding": False}) < 1.4
    plain = stream([5.0, *(2.0 * n**0.7 for n in range(1, 9))])
    assert measure("growth_exponent", layers=plain) == pytest.approx(0.7)
    least = values[-1] / values[0]
    assert measure("growth_exponent", **given, least_growth=least) == pytest.approx(1.5)
    few = reason("growth_exponent", **given, least_growth=1.01 * least)
    assert few == f"variance grows {least:.2g} times only"


def test_the_law_that_fits_a_growth_worse_has_the_larger_aic():
    passed = np.arange(13.0)
    power, exponential = 1e-3 + passed**2, 1.5**passed
    found = "exponential_over_power"
    assert measure(found, layers=stream(exponential)) > 100
    assert measure(found, layers=stream(power)) < -20
    down = stream(exponential[::-1], "grad")
    assert measure(found, layers=down, quantity="gradient") > 100
    # In L - l + 1: |delta_l| = (L - l + 1)^2 is a power law, counted from the output.
    steps = stream([1.0, *(np.arange(12.0, 0, -1) ** 2)], "grad")
    assert measure(found, layers=steps, quantity="gradient") < -100
    assert "tenfold" in reason(found, layers=stream([1.0, 1.0, 9.9]))
    assert isinstance(measure(found, layers=stream([1.0, 1.0, 3.0, 10.0])), float)


def test_a_slope_per_sublayer_counts_attention_and_mlp():
    assert measure("slope_per_sublayer", layers=stream([9.0, 3, 5, 7])) == pytest.approx(1.0)
    one = stream([9.0, 3, 5, 7])
    one = one[one["sublayer"] != "attn"]
    assert measure("slope_per_sublayer", layers=one) == pytest.approx(2.0)


def test_a_factor_per_block_is_over_that_of_the_gain():
    given = {"runs": runs(), "layers": stream([7.0, 1.0, 3.0, 9.0])}
    assert measure("factor_over_law", **given) == pytest.approx(3 / 1.5)
    given["layers"] = stream([7.0, 9.0, 3.0, 1.0], "grad")
    found = measure("factor_over_law", **given, quantity="gradient")
    assert found == pytest.approx(9 / 1.5)  # of the square


def test_an_increment_is_from_the_embedding_to_the_end():
    given = {"runs": runs(), "layers": stream([2.0, 5.0, 6.0, 8.0])}
    assert measure("increment", **given) == pytest.approx(6.0)
    assert measure("increment", **given, over_law=True) == pytest.approx(6 / (3 * 0.5))


def test_exponents_over_depth_are_of_the_runs_of_a_seed():
    both = runs({"run": "a", "depth": 9}, {"run": "b", "depth": 1}, {"run": "c", "depth": 3})
    up = [stream([2.0, 1.0, 2 + 5 * 9**1.5]), stream([2.0, 7.0], run="b")]
    up.append(stream([2.0, 4.0, 2 + 5 * 3**1.5], run="c"))
    found = measure("increment_over_depth", layers=joined(up), runs=both)
    assert found == pytest.approx(1.5)
    down = [
        stream([1.0, 4 * L**-0.5, 8.0], "grad", run, median=[1.0, L**0.25, 5.0])
        for run, L in (("a", 9), ("b", 1), ("c", 3))
    ]
    given = {"layers": joined(down), "runs": both}
    assert measure("first_gradient_over_depth", **given) == pytest.approx(-0.5)
    found = measure("first_gradient_over_depth", **given, token="median")
    assert found == pytest.approx(0.25)


def test_sigma_grows_as_the_root_of_the_sum_of_its_branches():
    branches = [
        {"layer": layer, "sublayer": sublayer, "site": "branch_out", "var": var}
        for layer in range(3)
        for sublayer, var in (("attn", 1.0 + layer), ("mlp", 2.0 * layer))
    ]
    head = {"layer": 3, "sublayer": "head", "site": "branch_out", "var": 50.0}
    total = np.cumsum([1.0, 2 + 2.0, 3 + 4.0])
    layers = joined([stream([4.0, *(4 + total**3)]), rows(head, *branches)])
    assert measure("sigma_over_branches", layers=layers) == pytest.approx(1.5)


def test_a_layers_gain_is_the_mean_over_the_branches_of_the_blocks():
    sizes = [(0, "attn", 2.0, 6.0), (0, "mlp", 1.0, 5.0), (1, "head", 1.0, 100.0)]
    found = [
        {"layer": layer, "sublayer": sublayer, "site": site, "rms": rms}
        for layer, sublayer, *both in sizes
        for site, rms in zip(("branch_in", "branch_out"), both, strict=True)
    ]
    grad = {"site": "branch_out", "kind": "grad", "rms": 50.0}
    assert measure("layer_gain", layers=rows(*found, grad)) == pytest.approx((3 + 5) / 2)
    assert "not recorded" in reason("layer_gain", layers=rows(*found[::2]))


def test_a_ratio_of_last_variances_is_between_the_runs_of_two_values():
    layers = joined([stream([1.0, 6.0]), stream([1.0, 2.0], run="b")])
    both = runs({"run": "a", "depth": 6}, {"run": "b", "depth": 24})
    given = {"layers": layers, "runs": both, "axis": "depth"}
    assert measure("last_ratio", **given, of=6, to=24) == pytest.approx(3.0)
    assert measure("last_ratio", **given, of="24", to="6") == pytest.approx(1 / 3)
    given["layers"] = joined([stream([1.0, 6.0]), stream([1.0, 0.0], run="b")])
    assert measure("last_ratio", **given, of=6, to=24) == math.inf
    assert reason("last_ratio", **given, of=6, to=3) == "no run with depth = 3"
