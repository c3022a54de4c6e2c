"""The equation of each placement, as text, as the order of its calls and in its constants."""

import math

import pytest
import yaml

from call_order import calls
from stability.config import instantiate
from stability.config.folders import conf_dir, options
from stability.parts.placements import (
    DeepNorm,
    DepthMuP,
    DepthScaledSandwich,
    Keel,
    LayerNormScaling,
    LayerScale,
    Mix,
    NoNorm,
    OutputNorm,
    Peri,
    Placement,
    Plain,
    Post,
    Pre,
    ReZero,
    Sandwich,
    SkipInit,
    Trinity,
    ending,
    equation,
    norms_used,
)
from stability.parts.stream_placements import ResiDual, SiameseNorm
from tiny import classes

# Written from the papers, not from the code: class, equation, order of calls, norms, final norm.
CATALOGUE = [
    (Pre, "x + f(N(x))", ["norm", "f", "add"], [""], True),
    (Post, "N(x + f(x))", ["f", "add", "norm"], [""], False),
    (NoNorm, "x + f(x)", ["f", "add"], [], False),
    (Plain, "f(x)", ["f"], [], False),
    (Peri, "x + N_out(f(N(x)))", ["norm", "f", "norm.out", "add"], ["", "out"], True),
    (ResiDual, "x: N(x + f(x)), r: r + f(x)", ["f", "add", "norm", "add"], [""], True),
    (
        SiameseNorm,  # the fourth block: 1 / sqrt(2 * 4) = 0.354
        "x: N(x) + 0.354 f(N_inner(N(x) + N_y(y))), y: y + f(N_inner(N(x) + N_y(y)))",
        ["norm", "norm.y", "add", "norm.inner", "f", "scale", "add", "add"],
        ["", "y", "inner"],
        True,
    ),
    (DeepNorm, "N(2.21 x + f(x))", ["scale", "f", "add", "norm"], [""], False),
    (Sandwich, "x + N_out(f(N(x)))", ["norm", "f", "norm.out", "add"], ["", "out"], True),
    (OutputNorm, "x + N_out(f(x))", ["f", "norm.out", "add"], ["out"], True),
    (
        DepthScaledSandwich, "x + 0.125 N_out(f(N(x)))",
        ["norm", "f", "norm.out", "add"], ["", "out"], True,
    ),
    (Trinity, "x + 0.289 N_out(f(N(x)))", ["norm", "f", "norm.out", "add"], ["", "out"], True),
    (LayerNormScaling, "x + f(0.5 N(x))", ["norm", "scale", "f", "add"], [""], True),
    (Mix, "x + f(N(x))", ["norm", "f", "add"], [""], True),
    (Keel, "N_out(24 x + f(N(x)))", ["scale", "norm", "f", "add", "norm.out"], ["", "out"], False),
    (DepthMuP, "x + 0.0833 f(N(x))", ["norm", "f", "scale", "add"], [""], True),
    (ReZero, "x + 0 f(x)", ["f", "scale", "add"], [], False),
    (SkipInit, "x + 0.204 f(x)", ["f", "scale", "add"], [], False),
    (LayerScale, "x + 0.1 f(N(x))", ["norm", "f", "scale", "add"], [""], True),
]  # fmt: skip


def made(cls, depth, layer=0, sublayer="mlp"):
    """A placement with the arguments of its yaml."""
    nodes = map(config_of, options("norm"))
    (node,) = [n for n in nodes if n["_target_"].endswith(f".{cls.__name__}")]
    return instantiate.build(node, "norm", depth, layer, sublayer)


def config_of(option):
    return yaml.safe_load((conf_dir() / "norm" / f"{option}.yaml").read_text())["build"]


def test_every_placement_of_conf_is_in_the_catalogue():
    assert {line[0] for line in CATALOGUE} == classes("norm")


@pytest.mark.parametrize(("cls", "text", "order", "norms", "final"), CATALOGUE)
def test_each_placement_is_the_equation_of_its_source(cls, text, order, norms, final):
    placement = made(cls, depth=12, layer=3)
    assert equation(placement) == text
    assert calls(placement) == order
    assert norms_used(placement) == norms
    assert placement.final_norm is final


# alpha = (2L)^(1/4), beta = (8L)^(-1/4), table 2 of arXiv:2203.00555, decoder-only.
@pytest.mark.parametrize(
    ("depth", "alpha", "beta"),
    [(2, 2**0.5, 0.5), (8, 2.0, 8**-0.5), (32, math.sqrt(8), 0.25), (100, 3.7606, 0.18803)],
)
def test_deepnorm_constants_follow_the_depth(depth, alpha, beta):
    placement = DeepNorm(depth, 0, "attn")
    assert placement.alpha == pytest.approx(alpha, rel=1e-4)
    for role in ("v", "attn_out", "mlp_in", "mlp_out"):
        assert placement.init_gain(role) == pytest.approx(beta, rel=1e-4)
    for role in ("q", "k"):
        assert placement.init_gain(role) == 1.0


def test_mix_is_post_ln_in_the_first_quarter_and_pre_ln_above():
    for depth, post in ((12, 3), (8, 2), (3, 0), (5, 1)):
        equations = [equation(Mix(depth, layer, "attn")) for layer in range(depth)]
        assert equations == ["N(x + f(x))"] * post + ["x + f(N(x))"] * (depth - post)


def test_factors_of_a_sublayer_follow_its_block_or_the_depth():
    assert [LayerNormScaling(9, layer, "mlp").scale for layer in (0, 3, 8)] == [1, 0.5, 1 / 3]
    assert {Keel(depth, 0, "mlp").alpha for depth in (80,)} == {160}
    starts = [LayerScale(depth, 0, "mlp").a for depth in (1, 18, 19, 24, 25, 96)]
    assert starts == [0.1, 0.1, 1e-5, 1e-5, 1e-6, 1e-6]
    assert SkipInit(8, 0, "mlp").a == 0.25 and ReZero(8, 0, "mlp").a == 0


def test_a_sandwich_scales_residual_projections_alone():
    placement = Sandwich(8, 0, "mlp")
    for role in ("attn_out", "mlp_out", "linear"):
        assert placement.init_gain(role) == 0.25
    assert {placement.init_gain(role) for role in ("q", "k", "v", "mlp_in", "mlp_gate")} == {1.0}


SCALED = [(DepthScaledSandwich, 0.283, 0.432), (Trinity, 1, 1)]


@pytest.mark.parametrize(("cls", "attn", "mlp"), SCALED)
def test_a_depth_scaled_sandwich_starts_its_outer_gain_below_one(cls, attn, mlp):
    for sublayer, c in (("attn", attn), ("mlp", mlp), ("linear", mlp)):
        placement = made(cls, 16, 3, sublayer)
        assert placement.norm_gain("out") == pytest.approx(c / 4)
        assert placement.norm_gain("") == 1


@pytest.mark.parametrize("cls", [Pre, Post, NoNorm, Plain, Peri])
def test_other_placements_leave_the_init_alone(cls):
    assert {cls(24, 5, "mlp").init_gain(r) for r in ("q", "v", "mlp_in", "mlp_out")} == {1.0}


def test_a_sum_is_bracketed_when_it_is_scaled():
    class Halved(Placement):
        def __call__(self, x, f, norm):
            return 0.5 * (x + f(norm.inner(x)))

    assert equation(Halved(6, 0, "attn")) == "0.5 (x + f(N_inner(x)))"
    assert norms_used(Halved(6, 0, "attn")) == ["inner"]


def test_a_placement_without_an_equation_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        Placement(6, 0, "attn")


def test_an_equation_must_return_what_its_operations_gave():
    class Lost(Placement):
        def __call__(self, x, f, norm):
            return None

    with pytest.raises(TypeError, match="Lost returned NoneType"):
        equation(Lost(6, 0, "attn"))


# Class, what the head reads, its norms.
ENDINGS = [
    (Pre, "N(x)", [""]),
    (Post, "x", []),
    (ResiDual, "x + N(r)", [""]),
    (SiameseNorm, "N(N_x(x) + N_y(y))", ["x", "y", ""]),
]


@pytest.mark.parametrize(("cls", "text", "norms"), ENDINGS)
def test_each_placement_ends_as_its_source_does(cls, text, norms):
    assert ending(cls(12, 11, "mlp")) == (text, norms)


class Two(Placement):
    """A placement of two streams, of which each test leaves out something."""

    streams = ("a", "b")

    def __call__(self, state, f, norm):
        return state


def test_every_stream_begins_as_the_embedding():
    assert Two(6, 0, "attn").begin("x0") == ("x0", "x0")
    assert Pre(6, 0, "attn").begin("x0") == "x0"


def test_several_streams_must_say_how_they_end():
    with pytest.raises(TypeError, match="Two has several streams and no end of its own"):
        ending(Two(6, 0, "attn"))


def test_an_end_must_be_one_operand():
    class Both(Two):
        def end(self, state, norm):
            return state

    with pytest.raises(TypeError, match=r"Both\.end returned tuple"):
        ending(Both(6, 0, "attn"))


def test_an_equation_must_return_every_stream():
    class One(Two):
        def __call__(self, state, f, norm):
            return state[0]

    with pytest.raises(TypeError, match="One returned 1 streams, not 2"):
        equation(One(6, 0, "attn"))
