"""Each criterion in experiments/ on made-up sweeps: one where it must hold, one where it must fail.

A verdict that cannot come out otherwise says nothing.
"""

import numpy as np
import pytest

import made_up
from made_up import (
    Made,
    gain,
    jacobian,
    lesion,
    lost,
    norm_product,
    overflow_step,
    overflowing,
    probe,
    stream,
    trained,
    weight_gradients,
)
from stability.claims import syntax
from stability.claims.evaluate import evaluate
from stability.claims.verdict import FAILS, HOLDS
from stability.config import folders

CLAIMS = {c.id: c for c in syntax.read_claims(folders.experiments()) if c.parts and not c.like}
LINEAR = 1 + made_up.GAIN
"""What a linear branch without a norm multiplies the variance by."""


def is_linear(run):
    return run["sweep"].endswith("linear_branch") or run["sweep"] == "unit_variance_init"


def gap(run, batchnorm):
    return trained(2.0 + batchnorm * (run["norm_type"] == "batchnorm"))


def first_overflow(run, fp16):
    return overflow_step({"fp16": fp16}.get(run["dtype"], 5))


def other_formats(run):
    made = first_overflow(run, 7)
    made.run["finfo.max"] = 1e9
    return made


def warmup(run, without, with_it):
    """Post-LN's losses without and with warm-up; Pre-LN learns either way."""
    if run["norm"] == "pre":
        return trained(2.0)
    return trained(with_it if run["train.warmup_steps"] else without)


def pre_needs_it_too(run):
    return trained(2.0 if run["train.warmup_steps"] or run["norm"] == "post" else 2.6)


def pre_bounded(run, rate):
    made = stream(run, lambda b: 1.0 + b)
    grown = np.exp(rate * run["depth"])
    made.layers += stream(run, grad=lambda b: grown * np.exp(-rate * b) / np.sqrt(1.0 + b)).layers
    return made


def cost(run, loss, seconds):
    slower = run["norm_type"] == "rmsnorm"
    return trained(2.0 + loss * slower, seconds=1 + seconds * slower)


def lesions(run, residual, plain):
    made = lesion(plain if run["norm"] == "plain" else residual)
    made.run = trained(2.0).run
    return made


def scaled(run, gpt, linear):
    """Var(x_L) - Var(x_0), linear branches in units of the law."""
    L = run["depth"]
    total = linear * L * made_up.GAIN if is_linear(run) else gpt(L)
    return stream(run, lambda b: 1.0 + total * b / L)


def vanishing(run, plain, linear):
    rate = linear if is_linear(run) else plain
    return stream(run, grad=lambda b: np.exp(rate * (b - run["depth"])))


WORLDS = {
    "batchnorm-suffers": (lambda r: gap(r, 1.0), lambda r: gap(r, -0.5)),
    "bf16-loses-precision": (
        lambda r: lost(0.5 if r["dtype"] == "bf16" else 0.0),
        lambda r: lost(0.05),
    ),
    "fp16-overflows-first": (lambda r: first_overflow(r, 2), other_formats),
    "gain-compounds": (
        lambda r: stream(r, lambda b: (0.9 if r["init.std"] < 0.044 else 1.1) ** (2.0 * b)),
        lambda r: stream(r, lambda b: 1.0 + 0 * b),
    ),
    "none-forward-exponential": (
        lambda r: stream(r, lambda b: 1.0 * LINEAR**b),
        lambda r: stream(r, lambda b: (1.0 + b) ** 4),
    ),
    "none-gradient-exponential": (
        lambda r: stream(r, grad=lambda b: LINEAR ** ((r["depth"] - b) / 2)),
        lambda r: stream(r, grad=lambda b: (1.0 + r["depth"] - b) ** 2),
    ),
    "none-overflows": (lambda r: overflowing(r, 1.0), lambda r: overflowing(r, 0.5)),
    "plain-vanishes": (lambda r: vanishing(r, 0.5, 0.0), lambda r: vanishing(r, 0.0, 0.5)),
    "post-gradient-vanishes": (lambda r: norm_product(r, 1.0), lambda r: norm_product(r, 0.0)),
    "post-needs-warmup": (lambda r: warmup(r, 3.0, 2.0), pre_needs_it_too),
    "post-top-heavy": (lambda r: weight_gradients(r, 9.0), lambda r: weight_gradients(r, 1.0)),
    "pre-forward-linear": (
        lambda r: stream(r, lambda b: 1e-3 + b),
        lambda r: stream(r, lambda b: 1e-3 + b**2),
    ),
    "pre-gradient-bounded": (lambda r: pre_bounded(r, 0.0), lambda r: pre_bounded(r, 0.3)),
    "pre-perturbation-decays": (lambda r: jacobian(r, -1.0), lambda r: jacobian(r, 0.0)),
    "residual-ensemble": (lambda r: lesions(r, 0.05, 0.9), lambda r: lesions(r, 0.5, 0.1)),
    "residual-scaled-init": (
        lambda r: scaled(r, lambda L: 1.0, 1.0),
        lambda r: scaled(r, lambda L: L, 2.0),
    ),
    "rmsnorm-is-enough": (lambda r: cost(r, 0.0, -0.1), lambda r: cost(r, 0.1, 0.1)),
    "sigma-sqrt-depth": (
        lambda r: stream(r, lambda b: np.maximum(b, 1e-3)),
        lambda r: stream(r, lambda b: np.maximum(b, 1e-3) ** 2),
    ),
    "std-002-is-below-unit": (lambda r: gain(0.9), lambda r: gain(0.5)),
    "unit-variance-init": (
        lambda r: stream(r, lambda b: 1.0 + b),
        lambda r: stream(r, lambda b: 1.0 + 2 * b),
    ),
    "weight-grad-outer-product": (
        lambda r: probe("outer_product", {(0, "mlp", "mlp_in"): 1e-6}),
        lambda r: probe("outer_product", {(0, "mlp", "mlp_in"): 1e-3}),
    ),
}  # fmt: skip
"""Claim -> the world in which it holds, and the one in which each of its criteria fails."""


def judged(claim, world):
    result = evaluate(CLAIMS[claim], made_up.sweeps(CLAIMS[claim], world), with_theory=False)
    return result, [f for f in result.findings if f.criterion]


def test_no_claim_is_left_out():
    assert set(WORLDS) == set(CLAIMS)


@pytest.mark.parametrize("claim", WORLDS)
def test_a_claim_holds_where_it_is_so(claim):
    result, findings = judged(claim, WORLDS[claim][0])
    assert {f.label: f.verdict for f in findings} == {f.label: HOLDS for f in findings}
    assert result.verdict == HOLDS
    assert not result.departures or all("seed" in said for said in result.departures)


@pytest.mark.parametrize("claim", WORLDS)
def test_each_criterion_fails_where_it_is_not_so(claim):
    result, findings = judged(claim, WORLDS[claim][1])
    assert {f.label: f.verdict for f in findings} == {f.label: FAILS for f in findings}
    assert result.verdict == FAILS


NEVER = 2.9
"""A loss at which a net has not learned; the unigram entropy is 3."""


@pytest.mark.parametrize(
    ("without", "with_it", "expected"),
    [
        (NEVER, NEVER, FAILS),  # warm-up does nothing: Post-LN learns neither way
        (NEVER, 2.6, HOLDS),  # 0.3 nat; all seeds learn with warm-up, none without it
        (NEVER, 2.3, HOLDS),
        (2.0, 2.0, FAILS),
    ],
)
def test_post_needs_warmup_only_where_warmup_helps(without, with_it, expected):
    result, _ = judged("post-needs-warmup", lambda r: warmup(r, without, with_it))
    assert result.verdict == expected


def test_a_made_up_sweep_without_numbers_measures_nothing():
    result, _ = judged("sigma-sqrt-depth", lambda r: Made())
    assert result.verdict not in (HOLDS, FAILS)
