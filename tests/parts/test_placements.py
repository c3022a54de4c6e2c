"""The equation of each placement, as text, as the order of its calls and in its constants."""

import math

import pytest

from call_order import calls
from stability.parts.placements import (
    DeepNorm,
    NoNorm,
    Peri,
    Placement,
    Plain,
    Post,
    Pre,
    equation,
    norms_used,
)
from tiny import classes

# Written from the papers, not from the code: class, equation, order of calls, norms, final norm.
CATALOGUE = [
    (Pre, "x + f(N(x))", ["norm", "f", "add"], [""], True),
    (Post, "N(x + f(x))", ["f", "add", "norm"], [""], False),
    (NoNorm, "x + f(x)", ["f", "add"], [], False),
    (Plain, "f(x)", ["f"], [], False),
    (Peri, "x + N_out(f(N(x)))", ["norm", "f", "norm.out", "add"], ["", "out"], True),
    (DeepNorm, "N(2.21 x + f(x))", ["scale", "f", "add", "norm"], [""], False),
]


def test_every_placement_of_conf_is_in_the_catalogue():
    assert {line[0] for line in CATALOGUE} == classes("norm")


@pytest.mark.parametrize(("cls", "text", "order", "norms", "final"), CATALOGUE)
def test_each_placement_is_the_equation_of_its_source(cls, text, order, norms, final):
    placement = cls(depth=12, layer=3, sublayer="mlp")
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
