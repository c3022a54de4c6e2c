"""Verdicts follow from data: known laws of growth in, the right verdict out."""

import math

import numpy as np
import pytest

from law_sweeps import (
    BEATS,
    EXPONENT,
    EXPONENTIAL,
    LINEAR,
    NOISE,
    ROOT,
    SIGMA,
    SLOPE,
    claim_of,
    noisy,
    result_of,
    verdict_of,
    write_sweep,
)
from stability.claims.evaluate import evaluate
from stability.claims.sweep_data import SweepData
from stability.claims.verdict import (
    BY_CONSTRUCTION,
    CONDITIONAL,
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    NOT_MEASURED,
    REPORTED,
)
from synthetic import UNIGRAM


@pytest.mark.parametrize(
    ("law", "part", "expected"),
    [
        (LINEAR, EXPONENT, HOLDS),
        (EXPONENTIAL, EXPONENT, FAILS),
        (ROOT, EXPONENT, FAILS),
        (noisy(lambda n: 1e-3 + 0.4 * n, 0.4), EXPONENT, INCONCLUSIVE),
        (EXPONENTIAL, BEATS, HOLDS),
        (LINEAR, BEATS, FAILS),
        (ROOT, BEATS, NOT_MEASURED),  # moves less than tenfold
        (NOISE, BEATS, INCONCLUSIVE),
        (LINEAR, SIGMA, HOLDS),
        (EXPONENTIAL, SIGMA, FAILS),
        (ROOT, SIGMA, FAILS),
        (LINEAR, SLOPE, HOLDS),
        (EXPONENTIAL, SLOPE, FAILS),
        (NOISE, SLOPE, INCONCLUSIVE),
    ],
)
def test_each_law_of_growth_gets_its_verdict(tmp_path, law, part, expected):
    write_sweep(tmp_path, "q", law)
    assert verdict_of(tmp_path, part) == expected


def test_the_fitted_number_is_that_of_the_law(tmp_path):
    write_sweep(tmp_path, "q", noisy(lambda n: 3.0 * np.maximum(n, 1) ** 0.7))
    (found,) = result_of(tmp_path, {"measure": "growth_exponent"}).findings
    assert found.value == pytest.approx(0.7)
    assert found.low == pytest.approx(found.high)
    assert (found.verdict, found.seeds) == (REPORTED, 6)


def test_gradients_are_followed_towards_the_input(tmp_path):
    grow = noisy(lambda n: 1.5 ** (12.0 - n))
    write_sweep(tmp_path, "q", LINEAR, gradient=grow)
    part = {**BEATS, "with": {"quantity": "gradient"}, "each": {"token": ["all", "median"]}}
    assert verdict_of(tmp_path, part) == HOLDS
    decay = {"measure": "decay_per_block", "criterion": {"at_most": -0.1}}
    found = result_of(tmp_path, decay)
    assert found.verdict == FAILS
    assert found.findings[0].value == pytest.approx(math.log(1.5))


def test_an_exponent_over_depths_pairs_the_runs_of_a_seed(tmp_path):
    laws = {L: noisy(lambda n, L=L: 1e-3 + n * L**0.25) for L in (4, 8, 16)}
    write_sweep(tmp_path, "q", laws, axis="depth")
    (found,) = result_of(tmp_path, {"measure": "increment_over_depth"}).findings
    assert found.value == pytest.approx(1.25)


def test_fewer_than_five_seeds_are_no_measurement(tmp_path):
    write_sweep(tmp_path, "q", LINEAR, seeds=range(4))
    found = result_of(tmp_path, EXPONENT)
    assert found.verdict == NOT_MEASURED
    assert "4 seeds, at least 5" in found.reason


def test_without_runs_it_says_which_command_makes_them(tmp_path):
    found = result_of(tmp_path, EXPONENT)
    assert found.verdict == NOT_MEASURED
    assert "experiments=q" in found.reason


def test_a_claim_waits_for_all_of_its_parts(tmp_path):
    write_sweep(tmp_path, "q", LINEAR)
    found = result_of(tmp_path, EXPONENT, {**SIGMA, "name": "elsewhere", "runs": "other"})
    assert found.verdict == NOT_MEASURED
    assert "experiments=other" in found.reason


def test_a_filter_that_leaves_no_run_is_no_error(tmp_path):
    write_sweep(tmp_path, "q", LINEAR)
    found = result_of(tmp_path, {**EXPONENT, "where": {"norm": "post", "depth": 3}})
    assert (found.verdict, "no finished run" in found.reason) == (NOT_MEASURED, True)


def test_settings_that_differ_are_conditional_and_named(tmp_path):
    write_sweep(tmp_path, "q", {64: LINEAR, 128: EXPONENTIAL}, axis="model.width")
    found = result_of(tmp_path, {**EXPONENT, "over": ["model.width"]})
    assert found.verdict == CONDITIONAL
    assert "holds: width=64" in found.reason
    assert "fails: width=128" in found.reason


def test_tokens_that_differ_are_conditional_and_named(tmp_path, monkeypatch):
    write_sweep(tmp_path, "q", LINEAR, gradient=noisy(lambda n: np.exp(-0.3 * n)))
    monkeypatch.setattr(
        "stability.claims.measures.gradients.profile",
        lambda layers, quantity, token: np.exp({"all": 0, "median": 1}[token] * np.arange(13.0)),
    )
    part = {"measure": "decay_per_block", "each": {"token": ["all", "median"]}}
    found = result_of(tmp_path, {**part, "criterion": {"at_most": -0.1}})
    assert found.verdict == CONDITIONAL
    assert found.reason == "holds: token=median; fails: token=all"


def test_an_inconclusive_setting_leaves_a_claim_open_unless_two_others_differ(tmp_path):
    laws = {64: LINEAR, 96: noisy(lambda n: 1e-3 + 0.4 * n, 0.4), 128: EXPONENTIAL}
    write_sweep(tmp_path, "q", laws, axis="model.width")
    part = {**EXPONENT, "over": ["model.width"]}
    assert verdict_of(tmp_path, {**part, "where": {"model.width": [64, 96]}}) == INCONCLUSIVE
    assert verdict_of(tmp_path, part) == CONDITIONAL


def test_parts_of_one_statement_must_all_hold(tmp_path):
    write_sweep(tmp_path, "q", LINEAR)
    assert verdict_of(tmp_path, EXPONENT, BEATS) == CONDITIONAL
    assert verdict_of(tmp_path, EXPONENT, BEATS, together=True) == FAILS
    assert verdict_of(tmp_path, EXPONENT, {**SIGMA, "name": "sigma"}, together=True) == HOLDS


def test_an_alternative_may_hold_in_its_place(tmp_path):
    write_sweep(tmp_path, "q", LINEAR)
    assert verdict_of(tmp_path, {**BEATS, "or": SLOPE}) == HOLDS
    assert verdict_of(tmp_path, {**BEATS, "or": BEATS}) == FAILS


def test_a_changed_criterion_changes_the_verdict_and_nothing_else(tmp_path):
    write_sweep(tmp_path, "q", noisy(lambda n: 1e-3 + 0.4 * n, 0.05))
    before = result_of(tmp_path, EXPONENT).findings[0]
    after = result_of(tmp_path, {**EXPONENT, "criterion": {"between": [1.9, 2.1]}}).findings[0]
    assert (before.verdict, after.verdict) == (HOLDS, FAILS)
    assert (before.value, before.low, before.high) == (after.value, after.low, after.high)
    loose = result_of(tmp_path, {**EXPONENT, "criterion": {"at_least": before.low}}).findings[0]
    straddling = result_of(tmp_path, {**EXPONENT, "criterion": {"at_least": before.value}})
    assert (loose.verdict, straddling.verdict) == (HOLDS, INCONCLUSIVE)


def test_seeds_without_a_number_are_counted_and_never_dropped_in_silence(tmp_path):
    flat = noisy(lambda n: np.ones(len(n)))
    write_sweep(tmp_path, "q", LINEAR)
    write_sweep(tmp_path, "q", flat, seeds=range(6, 9))
    found = result_of(tmp_path, EXPONENT).findings[0]
    assert (found.verdict, found.seeds) == (HOLDS, 6)
    assert "3 of 9 seeds left out: variance grows 1 times only" in found.reason


def test_a_measure_within_its_noise_is_not_measured(tmp_path):
    def drift(n, rng):
        return 1 + 0.001 * n * (1 + 3 * rng.standard_normal())

    write_sweep(tmp_path, "q", drift)
    part = {"measure": "increment", "criterion": {"at_least": 0}}
    part["clear"] = {"measure": "increment", "errors": 5}
    found = result_of(tmp_path, part)
    assert found.verdict == NOT_MEASURED
    assert "within 5 standard errors of 0 at depth 12" in found.reason


def test_theory_is_evaluated_by_the_same_measure(tmp_path):
    shape = {"model.sublayers": "linear", "model.width": 32, "init": "lecun", "norm_type.eps": 0.0}
    sweep = write_sweep(tmp_path, "q", LINEAR, depth=4, **shape)
    part = {"measure": "slope_per_sublayer"}
    sweeps = {"q": SweepData(sweep)}
    assert evaluate(claim_of(part), sweeps).findings[0].theory is None  # no tokens: no theory
    x_BT = np.arange(16).reshape(2, 8)
    for folder in sweep.glob("run_*"):
        np.savez(folder / "batch0.npz", x=x_BT, y=x_BT)
    assert evaluate(claim_of(part), sweeps).findings[0].theory == pytest.approx(1, abs=1e-9)
    assert evaluate(claim_of({**part, "theory": False}), sweeps).findings[0].theory is None


WARMUP = {
    "name": "Post-LN",
    "where": {"norm": "post"},
    "reference": {"norm": "pre"},
    "measure": "loss_difference",
    "with": {"axis": "train.warmup_steps", "of": 0, "to": 50},
    "criterion": {"at_least": 0.5},
}


@pytest.mark.parametrize(
    ("post", "pre", "expected"),
    [
        ((2.6, 2.0), (2.0, 2.0), HOLDS),
        ((2.1, 2.0), (2.0, 2.0), FAILS),
        ((None, 2.0), (2.0, 2.0), HOLDS),  # diverged counts as guessing
        ((2.6, 2.0), (UNIGRAM, UNIGRAM), NOT_MEASURED),  # the reference arm has not learned
    ],
)
def test_a_training_claim_needs_a_reference_that_has_learned(tmp_path, post, pre, expected):
    def loss(config):
        found = (pre if config["choices"]["norm"] == "pre" else post)[
            config["train"]["warmup_steps"] > 0
        ]
        return None if found is None else found + 0.01 * config["seed"]

    for norm in ("post", "pre"):
        write_sweep(
            tmp_path, "q", {0: LINEAR, 50: LINEAR}, axis="train.warmup_steps", loss=loss,
            norm=norm, **{"train.steps": 200},
        )  # fmt: skip
    assert verdict_of(tmp_path, WARMUP) == expected
    or_else = {"measure": "not_learned_at", "with": {"axis": "train.warmup_steps", "of": 0}}
    or_else["criterion"] = {"at_least": 0.5}
    assert verdict_of(tmp_path, {**WARMUP, "or": or_else}) == expected


def test_a_learning_rate_is_chosen_by_the_arm_that_is_named(tmp_path):
    def loss(config):
        best = {"pre": 1e-3, "post": 3e-3}[config["choices"]["norm"]]
        return 2.0 + abs(math.log(config["train"]["lr"] / best)) / 10

    for norm in ("post", "pre"):
        laws = {1e-3: LINEAR, 3e-3: LINEAR}
        write_sweep(tmp_path, "q", laws, axis="train.lr", loss=loss, norm=norm)
    part = {
        "where": {"norm": "post"},
        "choose": {"axis": "train.lr", "where": {"norm": "pre"}},
        "measure": "final_loss",
    }
    (found,) = result_of(tmp_path, part).findings
    assert found.value == pytest.approx(2.0 + math.log(3) / 10)
    assert "lr=0.001" in found.reason


def test_an_identity_needs_no_runs(tmp_path):
    found = evaluate(claim_of(by_construction="t"), {})
    assert found.verdict == BY_CONSTRUCTION
