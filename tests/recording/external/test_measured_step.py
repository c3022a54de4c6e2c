"""What was measured of a step becomes rows in the order of execution, over all processes."""

import math

import pytest
import torch

from stability.config.names import Key
from stability.recording import stats
from stability.recording.external.measured_step import Clipping, parts_of, step_of
from stability.recording.external.passes import Call, Pass
from stability.results.statistics import INDEX

FIRST, SECOND, HEAD = Key(0, "mlp", "branch_out"), Key(1, "mlp", "branch_out"), Key(2, "head", "w")
WEIGHTS = {0: Key(0, "mlp", "w"), 1: Key(1, "mlp", "w")}


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def pass_of(*calls):
    made = Pass(training=True, measured=True, late=False)
    made.calls += calls
    return made


def call(key, order, grad_order, act=None, grad=None):
    measured = [stats.measure_tokens(x) if x is not None else None for x in (act, grad)]
    return Call(key, order, *measured, grad_order=grad_order)


def slots_of(parts):
    return [(kind, key) for kind, (key,) in sorted(parts, key=lambda slot: parts[slot].order)]


def test_rows_follow_the_order_of_execution():
    """Weights, forward, backward with each layer's own weight gradients after it, updates."""
    x = draw(2, 3, 4)
    passes = [pass_of(call(FIRST, 1, 4, x, x), call(SECOND, 2, 3, x, x))]
    keys = [WEIGHTS[0], WEIGHTS[1], HEAD]
    kinds = ("update", "weight_grad", "weight")
    parameters = {(kind, key): stats.measure(x) for kind in kinds for key in keys}
    found = slots_of(parts_of(passes, parameters))
    assert found == [
        *(("weight", key) for key in keys),
        *(("act", FIRST), ("act", SECOND)),
        *(("grad", SECOND), ("weight_grad", WEIGHTS[1])),
        *(("grad", FIRST), ("weight_grad", WEIGHTS[0])),
        ("weight_grad", HEAD),  # no gradient of its sublayer tells when
        *(("update", key) for key in keys),
    ]


def test_weight_gradients_without_a_recorded_gradient_lie_between_forward_and_updates():
    x = draw(2, 3, 4)
    parameters = {(kind, HEAD): stats.measure(x) for kind in ("update", "weight_grad", "weight")}
    found = slots_of(parts_of([pass_of(call(FIRST, 5, 0, x))], parameters))
    assert [kind for kind, _ in found] == ["weight", "act", "weight_grad", "update"]


def test_a_gradient_is_placed_where_it_first_arrived_and_passes_keep_their_order():
    one, two = draw(2, 3, 4), draw(2, 3, 4, seed=1)
    passes = [pass_of(call(FIRST, 9, 30, two, two)), pass_of(call(FIRST, 1, 20, one, one))]
    parts = parts_of(passes, {})
    assert parts["act", (FIRST,)].order == (1, 1)
    assert parts["grad", (FIRST,)].order == (2, 20, 0)
    for kind in ("act", "grad"):
        vectors = [vector for vector, _ in parts[kind, (FIRST,)].measured]
        expected = [stats.measure_tokens(x)[0] for x in (one, two)]
        torch.testing.assert_close(vectors, expected, equal_nan=True)


def test_what_was_not_measured_has_no_row():
    assert parts_of([pass_of(Call(FIRST, 1))], {}) == {}
    assert step_of([("a", {})], {}) is None


def part(x, tokens=True):
    """What a process measured of one activation."""
    measured = call(FIRST, 1, 0, x)
    if not tokens:
        measured.act = (stats.measure(x), None)
    return parts_of([pass_of(measured)], {})


def merged(*parts):
    return step_of(parts, {}).vectors_NF[0]


SHARED = ("numel", "nonfinite", "absmax", "mean", "var", "rms")


def assert_same(found, x, *names):
    wanted = stats.measure_tokens(x)[0]
    at = [INDEX[name] for name in names]
    torch.testing.assert_close(found[at], wanted[at], rtol=1e-12, atol=1e-15)


def test_processes_that_hold_the_same_tensor_count_once():
    x = draw(2, 3, 4)
    found = merged(("a", part(x)), ("a", part(x)))
    assert_same(found, x, *SHARED, "first_share")
    assert found[INDEX["token_rms_median"]] == stats.measure_tokens(x)[1].nanquantile(0.5)


def test_processes_with_different_batches_merge_with_all_tokens():
    x = draw(4, 3, 4)
    found = merged(("a", part(x[:1])), ("b", part(x[1:])))
    assert_same(found, x, *SHARED, "first_share")
    assert found[INDEX["token_rms_median"]] == stats.measure_tokens(x)[1].nanquantile(0.5)


def test_parts_of_one_tensor_merge_and_know_nothing_of_its_tokens():
    x = draw(2, 3, 8)
    found = merged(("a", part(x[..., :4])), ("a", part(x[..., 4:])))
    assert_same(found, x, *SHARED)
    for name in ("first_share", "token_rms_median"):
        assert math.isnan(found[INDEX[name]])


def test_parts_of_a_parameter_merge():
    x = draw(2, 3, 8)
    found = merged(("a", part(x[:1], tokens=False)), ("a", part(x[1:], tokens=False)))
    assert_same(found, x, *SHARED)


@pytest.mark.parametrize("name", ["numel", "nonfinite"])
def test_tensors_that_differ_in_a_count_are_parts(name):
    x = torch.ones(2, 3, 4, dtype=torch.float64)
    other = torch.ones(2, 3, 5, dtype=torch.float64) if name == "numel" else x.clone()
    if name == "nonfinite":
        other[0, 0, 0] = math.nan
    found = merged(("a", part(x, tokens=False)), ("a", part(other, tokens=False)))
    assert found[INDEX["numel"]] == x.numel() + other.numel()


@pytest.mark.parametrize(
    ("before", "after", "factor"),
    [
        (4.0, 1.0, 5.0),
        (4.0, 4.0, 10.0),
        (0.0, 0.0, None),
        (math.inf, 1.0, None),
        (math.nan, 1, None),
    ],
)
def test_the_factor_of_clipping_is_the_ratio_of_the_norms_times_the_scale(before, after, factor):
    assert Clipping(before, after).factor(10.0) == factor
