"""The std of each init against its closed form, written out for the shapes of a small GPT."""

import math
from dataclasses import replace

import pytest

from stability.model.build import init_of
from stability.parts.inits import (
    GPT2,
    RESIDUAL_ROLES,
    ROLES,
    DepthInit,
    Init,
    Kaiming,
    LeCun,
    Normal,
    Small,
    Tiny,
    Wang,
    Weight,
    Xavier,
)
from tiny import make_config, options

D, DEPTH = 64, 6
SHAPES = {  # role: (fan_in, fan_out) at width 64 and MLP width 256
    "q": (D, D),
    "k": (D, D),
    "v": (D, D),
    "attn_out": (D, D),
    "mlp_in": (D, 4 * D),
    "mlp_gate": (D, 4 * D),
    "mlp_out": (4 * D, D),
    "linear": (D, D),
    "head": (D, 1000),
}


def weight(role: str) -> Weight:
    fan_in, fan_out = SHAPES[role]
    return Weight(role, fan_in, fan_out, layer=2, depth=DEPTH, sublayers=2 * DEPTH)


def test_the_shapes_here_cover_every_role():
    assert set(SHAPES) == set(ROLES)
    assert set(RESIDUAL_ROLES) <= set(ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_normal_is_its_std_everywhere(role):
    assert Normal(0.05).std(weight(role)) == 0.05


@pytest.mark.parametrize("role", ROLES)
def test_gpt2_is_002_and_residual_projections_are_divided_by_the_root_of_the_sublayers(role):
    residual = role in {"attn_out", "mlp_out", "linear"}
    assert GPT2().std(weight(role)) == pytest.approx(0.02 / math.sqrt(12) if residual else 0.02)


def test_gpt2_counts_one_sublayer_a_block_where_there_is_one():
    linear = replace(weight("linear"), sublayers=DEPTH)
    assert GPT2().std(linear) == pytest.approx(0.02 / math.sqrt(6))


# 1/std^2 by hand: (fan_in + fan_out)/2, fan_in, fan_in/2.
@pytest.mark.parametrize(
    ("role", "xavier", "lecun", "kaiming"),
    [
        ("q", 64, 64, 32),
        ("k", 64, 64, 32),
        ("v", 64, 64, 32),
        ("attn_out", 64, 64, 32),
        ("mlp_in", 160, 64, 32),
        ("mlp_gate", 160, 64, 32),
        ("mlp_out", 160, 256, 128),
        ("linear", 64, 64, 32),
        ("head", 532, 64, 32),
    ],
)
def test_fan_based_inits_follow_their_closed_form(role, xavier, lecun, kaiming):
    found = [rule.std(weight(role)) ** -2 for rule in (Xavier(), LeCun(), Kaiming())]
    assert found == pytest.approx([xavier, lecun, kaiming])


# std^2 by hand at d = 64, L = 6, in the third block.
@pytest.mark.parametrize(
    ("role", "small", "wang", "tiny", "depth_init"),
    [
        *((role, 1 / 160, 1 / 160, 1 / 768, 0.0004) for role in ("q", "k", "v", "mlp_gate")),
        ("attn_out", 1 / 160, 4 / (36 * 64), 1 / 768, 0.0004 / 6),
        ("mlp_in", 1 / 160, 1 / 160, 1 / 768, 0.0004 / 6),
        ("mlp_out", 1 / 160, 4 / (36 * 64), 1 / 768, 0.0004 / 6),
        ("linear", 1 / 160, 4 / (36 * 64), 1 / 768, 0.0004 / 6),
        ("head", 1 / 160, 1 / 160, 1 / 768, 1 / 64),
    ],
)
def test_inits_of_width_and_depth_follow_their_closed_form(role, small, wang, tiny, depth_init):
    found = [rule.std(weight(role)) ** 2 for rule in (Small(), Wang(), Tiny(), DepthInit())]
    assert found == pytest.approx([small, wang, tiny, depth_init])


def test_depth_init_starts_at_the_first_block():
    stds = [DepthInit().std(replace(weight("mlp_out"), layer=layer)) for layer in (0, 1, 7)]
    assert stds == pytest.approx([0.02 / math.sqrt(2), 0.01, 0.005])


def test_the_width_is_that_of_the_stream():
    assert {weight(role).width for role in ROLES} == {D}


def test_inits_that_scale_with_depth_say_so():
    for name in options("init"):
        rule = init_of(make_config(init=name))
        last = [replace(weight("mlp_out"), depth=n, sublayers=2 * n, layer=n - 1) for n in (6, 24)]
        stds = set(map(rule.std, last))
        assert rule.scales_with_depth == (len(stds) > 1), name


def test_lecun_keeps_the_variance_of_a_linear_layer():
    w = weight("mlp_out")
    assert w.fan_in * LeCun().std(w) ** 2 == pytest.approx(1)


def test_a_negative_std_is_refused():
    with pytest.raises(ValueError, match="std must be >= 0"):
        Normal(-0.1)
    assert Normal(0.0).std(weight("q")) == 0


def test_an_init_without_a_rule_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Init()
