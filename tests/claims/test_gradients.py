"""Measures of gradients against numbers that were put in."""

import math

import pytest

from measure_rows import joined, measure, probes, reason, rows, stream


def test_a_decay_is_per_block_between_the_first_and_the_last_output():
    layers = stream([100.0, 8.0, 3.0, 2.0], "grad", median=[9.0, 1.0, 5.0, 4.0])
    assert measure("decay_per_block", layers=layers) == pytest.approx(math.log(4) / 2)
    found = measure("decay_per_block", layers=layers, token="median")
    assert found == pytest.approx(-math.log(4) / 2)


def test_a_gradient_times_sigma_is_compared_with_its_mean():
    layers = joined(
        [
            stream([9.0, 4.0, 16.0, 1.0]),
            stream([9.0, 1.0, 1.0, 1.0], "grad", median=[5.0, 3.0, 1.0, 2.0]),
        ]
    )
    # Products 6, 4, 2 for the median token, 2, 4, 1 for all.
    assert measure("gradient_times_sigma_spread", layers=layers) == pytest.approx(0.5)
    found = measure("gradient_times_sigma_spread", layers=layers, token="all")
    assert found == pytest.approx(4 / (7 / 3) - 1)


def test_the_norms_between_the_first_and_the_last_block_make_the_product():
    factors = [(0, "mlp", 0.001), (1, "attn", 0.2), (1, "mlp", 0.05), (2, "head", 0.001)]
    found = [
        {"probe": "norm_sigma", "layer": layer, "sublayer": sublayer, "value": value}
        for layer, sublayer, value in factors
    ]
    other = {"probe": "lesion", "value": 0.3}
    given = {"layers": stream([9.0, 1.0, 10.0], "grad"), "probes": probes(*found, other)}
    assert measure("norm_product_per_norm", probes=given["probes"]) == pytest.approx(0.1)
    assert measure("share_of_norm_product", **given) == pytest.approx(0.5)
    near = {**given, "probes": probes(*(f | {"value": 0.9} for f in found))}
    assert reason("share_of_norm_product", **near).startswith("the product of 1/sigma is 0.81")
    for value, told in ((0.3165, False), (0.316, True), (3.162, False), (3.163, True)):
        one = {**given, "probes": probes(*(f | {"value": value} for f in found))}
        if told:  # the square of the value is tenfold, up or down
            assert measure("share_of_norm_product", **one) == pytest.approx(
                -math.log(10) / (2 * math.log(value))
            )
        else:
            assert "too near 1" in reason("share_of_norm_product", **one)


def test_the_last_blocks_weight_is_compared_with_the_firsts():
    sizes = [(1, 3.0), (0, 4.0), (2, 20.0)]
    own = [{"layer": layer, "kind": "weight_grad", "site": "q", "rms": rms} for layer, rms in sizes]
    others = [{**own[0], "site": "mlp_out"}, {**own[0], "kind": "weight"}]
    found = measure("top_over_bottom", layers=rows(*own, *others), weight="q")
    assert found == pytest.approx(5.0)
    assert reason("top_over_bottom", layers=rows(*own), weight="k") == "no weight_grad of k"
    of_groups = [
        {"probe": "token_grad", "layer": layer, "item": f"q.{group}", "value": value * factor}
        for layer, value in sizes
        for group, factor in (("first", 1.0), ("rest", 1.0 + layer))
    ]
    given = {"probes": probes(*of_groups), "weight": "q"}
    assert measure("top_over_bottom_of_group", **given, group="first") == pytest.approx(5.0)
    assert measure("top_over_bottom_of_group", **given) == pytest.approx(15.0)


def test_probes_give_their_largest_and_mean_value_of_all_items_or_one():
    found = [("outer", "q", 2.0), ("outer", "k", 6.0), ("outer", "q", 1.0), ("other", "q", 9.0)]
    given = {
        "probes": probes(*({"probe": p, "item": i, "value": v} for p, i, v in found)),
        "probe": "outer",
    }
    assert measure("largest_error", **given) == 6.0
    assert measure("largest_error", **given, item="q") == 2.0
    assert measure("mean_value", **given) == 3.0
    assert measure("mean_value", **given, item="q") == 1.5
    assert reason("mean_value", **given, item="v") == "no probe outer v"


def test_a_spectral_norm_is_compared_with_its_own_norms_sigma():
    found = [
        {"probe": "norm_jacobian", "layer": layer, "item": item, "value": value}
        for layer, item, value in (
            *((0, "spectral", 2.2), (1, "spectral", 0.45)),
            *((1, "inverse_sigma", 0.5), (0, "inverse_sigma", 2.0)),
        )
    ]
    assert measure("spectral_error", probes=probes(*found)) == pytest.approx(0.1)


def test_a_branchs_jacobian_has_the_mean_exponent_of_its_kinds():
    jacobians, streams = [], []
    for layer in range(6):
        for first, (sublayer, power) in enumerate((("attn", -1.0), ("mlp", -2.0)), start=1):
            k = 2 * layer + first
            where = {"layer": layer, "sublayer": sublayer}
            size = 100.0 if layer == 0 else k**power
            jacobians.append({**where, "probe": "jacobian", "item": "branch", "value": size})
            streams.append({**where, "site": "resid_pre", "var": k**1.0})
    head = {"layer": 6, "sublayer": "head", "site": "resid_pre", "var": 99.0}
    given = {"probes": probes(*jacobians), "layers": rows(head, *streams)}
    found = measure("branch_jacobian_exponent", probes=given["probes"])
    assert found == pytest.approx(-1.5)
    assert measure("branch_jacobian_times_sigma_exponent", **given) == pytest.approx(-1.0)


def test_a_branchs_exponent_leaves_out_the_first_block_only():
    sizes = [100.0, 2.0, 18.0]  # with k = 2, 3 the exponent is ln 9 / ln(3 / 2)
    jacobians = [
        {"probe": "jacobian", "item": "branch", "layer": layer, "value": size}
        for layer, size in enumerate(sizes)
    ]
    streams = [{"layer": layer, "site": "resid_pre"} for layer in range(3)]
    given = {"probes": probes(*jacobians), "layers": rows(*streams)}
    found = measure("branch_jacobian_times_sigma_exponent", **given)
    assert found == pytest.approx(math.log(9) / math.log(1.5))


def test_the_first_tokens_gradient_is_compared_with_the_mean_of_the_others():
    squares = {0: [36.0, 1.0, 9.0], 1: [4.0, 1.0, 1.0], 2: [9.0, 1.0, 1.0]}
    streams = [
        {"probe": "token_grad", "layer": layer, "sublayer": "mlp", "item": str(t), "value": v}
        for layer, values in squares.items()
        for t, v in enumerate(values)
    ]
    others = [
        {"probe": "token_grad", "layer": 0, "sublayer": "attn", "item": "0", "value": 777.0},
        {"probe": "token_grad", "layer": -1, "sublayer": "embed", "item": "0", "value": 777.0},
        {
            "probe": "token_grad",
            "layer": 0,
            "sublayer": "mlp",
            "item": "mlp_in.first",
            "value": 7.0,
        },
        {"probe": "lesion", "layer": 0, "sublayer": "mlp", "item": "0", "value": 7.0},
    ]
    given = probes(*reversed(streams), *others)
    # 6 over the mean of 1 and 3; 2 over 1; 3 over 1
    assert measure("first_token_over_others", probes=given) == pytest.approx(3.0)
    found = measure("first_token_over_others", probes=given, block="median")
    assert found == pytest.approx(3.0)
    two = probes(*(row for row in streams if row["layer"] > 0))
    assert measure("first_token_over_others", probes=two, block="median") == pytest.approx(2.5)
    zero = probes(*({**row, "value": 0.0} for row in streams))
    assert "not finite" in reason("first_token_over_others", probes=zero)
