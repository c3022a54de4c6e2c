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
from stability.claims.criterion import Criterion, Range
from stability.claims.evaluate import Finding, Result, decide, evaluate
from stability.claims.sweep_data import SweepData
from stability.claims.verdict import (
    BY_CONSTRUCTION,
    CONDITIONAL,
    FAILS,
    HALF,
    HOLDS,
    INCONCLUSIVE,
    NOT_MEASURED,
    REPORTED,
)
from stability.claims.yaml_types import BadClaim
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
    (found,) = evaluate(claim_of(part), sweeps).findings
    assert (found.theory, found.no_theory, found.reason) == (None, "no batch0.npz", "")
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


# -- findings --------------------------------------------------------------------------------------


def finding(verdict, part="", setting="", reason="", criterion=True, absent=False):
    asked = Criterion(Range(0, 1)) if criterion else None
    return Finding("q", part, setting, "increment", asked, verdict, reason=reason, absent=absent)


@pytest.mark.parametrize(
    ("findings", "together", "expected"),
    [
        ([finding(HOLDS, "a"), finding(FAILS, "b")], False, (CONDITIONAL, "holds: a; fails: b")),
        ([finding(HOLDS, "a"), finding(FAILS, "b")], True, (FAILS, "")),
        ([finding(HOLDS, "a"), finding(HOLDS, "b")], True, (HOLDS, "")),
        ([finding(HOLDS, "a"), finding(REPORTED, "b")], False, (HOLDS, "")),
        ([finding(HOLDS, "a"), finding(FAILS, "b", criterion=False)], False, (HOLDS, "")),
        (
            [finding(HOLDS, "a", "x"), finding(FAILS, "b", "x"), finding(HOLDS, "a", "y")],
            True,
            (CONDITIONAL, "holds: y; fails: x"),
        ),
        (  # a part without settings counts in each
            [finding(FAILS, "a"), finding(HOLDS, "b", "x"), finding(HOLDS, "b", "y")],
            True,
            (FAILS, ""),
        ),
        (
            [finding(NOT_MEASURED, reason="few"), finding(NOT_MEASURED, "a", reason="few")],
            False,
            (NOT_MEASURED, "few"),
        ),
        (
            [finding(HOLDS, "a", reason="r"), finding(NOT_MEASURED, "b", reason="w", absent=True)],
            False,
            (NOT_MEASURED, "w"),
        ),
        (
            [finding(HOLDS, "a"), finding(NOT_MEASURED, "b", reason="w")],
            False,
            (HOLDS, "holds: a; not measured: b"),
        ),
        ([finding(REPORTED)], False, (NOT_MEASURED, "")),
        ([finding(REPORTED)], True, (NOT_MEASURED, "")),
        ([finding(HOLDS)], True, (HOLDS, "")),
    ],
)
def test_a_claims_verdict_is_that_of_the_findings_that_have_a_criterion(
    findings, together, expected
):
    assert decide(findings, together) == expected


def test_a_finding_names_its_part_and_setting():
    assert finding(HOLDS).label == "all runs"
    assert finding(HOLDS, "a").label == "a"
    assert finding(HOLDS, setting="x").label == "x"
    assert finding(HOLDS, "a", "x").label == "a, x"
    assert (finding(HOLDS).asked, finding(HOLDS, criterion=False).asked) == ("0 to 1", "")


def test_a_result_waits_where_no_part_has_runs():
    here, absent = finding(HOLDS), finding(NOT_MEASURED, absent=True)
    found = [Result(claim_of(EXPONENT), HOLDS, "", f).waits for f in ([], [here, absent], [absent])]
    assert found == [False, False, True]


def test_a_part_without_a_name_is_called_by_its_measure_where_there_are_others(tmp_path):
    write_sweep(tmp_path, "q", LINEAR)
    assert [f.part for f in result_of(tmp_path, EXPONENT).findings] == [""]
    found = result_of(tmp_path, EXPONENT, {**BEATS, "name": "law"}).findings
    assert [f.part for f in found] == ["growth_exponent", "law"]
    assert {f.sweep for f in found} == {"q"}


def test_settings_come_from_the_runs_and_from_the_measure(tmp_path):
    write_sweep(tmp_path, "q", {6: LINEAR, 12: LINEAR}, axis="depth", gradient=EXPONENTIAL)
    part = {**BEATS, "with": {"quantity": "gradient"}, "over": ["depth"]}
    found = result_of(tmp_path, {**part, "each": {"token": ["all", "median"]}}).findings
    assert [f.setting for f in found] == [
        f"depth={depth}, token={token}" for depth in (6, 12) for token in ("all", "median")
    ]


def test_the_level_and_the_kind_of_mean_are_those_of_the_part(tmp_path):
    write_sweep(tmp_path, "q", noisy(lambda n: 1e-3 + 0.4 * n, 0.4))
    part = {"measure": "increment"}
    (usual,) = result_of(tmp_path, part).findings
    (narrow,) = result_of(tmp_path, {**part, "level": 0.5}).findings
    assert usual.low < narrow.low < narrow.high < usual.high
    (geometric,) = result_of(tmp_path, {**part, "mean": "geometric"}).findings
    assert geometric.value < usual.value
    assert geometric.low * geometric.high == pytest.approx(geometric.value**2)


def test_the_first_alternative_with_the_best_verdict_is_the_finding(tmp_path):
    write_sweep(tmp_path, "q", LINEAR)
    (found,) = result_of(tmp_path, {**BEATS, "or": SLOPE}).findings
    assert (found.measure, found.verdict) == ("slope_per_sublayer", HOLDS)
    assert found.asked == "0.38 to 0.42"
    (found,) = result_of(tmp_path, {**BEATS, "or": SIGMA | {"criterion": {"at_least": 9}}}).findings
    assert (found.measure, found.verdict) == ("exponential_over_power", FAILS)


def test_each_changes_the_first_measure_and_not_its_alternative(tmp_path):
    write_sweep(tmp_path, "q", LINEAR)
    part = {**BEATS, "each": {"token": ["all"]}, "or": SLOPE}
    (found,) = result_of(tmp_path, part).findings
    assert (found.measure, found.setting) == ("slope_per_sublayer", "token=all")


def test_a_part_waits_for_a_run_to_choose_by(tmp_path):
    write_sweep(tmp_path, "q", {1e-3: LINEAR}, axis="train.lr", loss=lambda config: 2.0)
    choose = {"axis": "train.lr", "where": {"norm": "post"}}
    (found,) = result_of(tmp_path, {**EXPONENT, "choose": choose}).findings
    assert found.absent
    assert found.reason == "no run of q with norm=post to choose by"


def test_a_reference_must_have_learned_at_the_value_that_is_chosen(tmp_path):
    def loss(config):
        return {1e-3: 2.0, 3e-3: UNIGRAM}[config["train"]["lr"]]

    write_sweep(tmp_path, "q", {1e-3: LINEAR, 3e-3: LINEAR}, axis="train.lr", loss=loss)
    part = {"measure": "final_loss", "reference": {"norm": "pre"}}
    (found,) = result_of(tmp_path, {**part, "where": {"norm": "pre"}}).findings
    assert (found.absent, found.reason) == (
        True, "the reference arm has not learned: 6 of 12 runs have",
    )  # fmt: skip
    below, above = result_of(tmp_path, {**part, "over": ["train.lr"]}).findings
    assert (below.verdict, below.value) == (REPORTED, 2.0)
    assert (above.verdict, above.absent, above.reason) == (
        NOT_MEASURED, False, "the reference arm has not learned: 0 of 6 runs have",
    )  # fmt: skip
    (found,) = result_of(
        tmp_path, {**part, "choose": {"axis": "train.lr", "where": {"norm": "pre"}}}
    ).findings
    assert (found.absent, found.value, found.reason) == (False, 2.0, "at lr=0.001")


@pytest.mark.parametrize(("with_warmup", "expected"), [(2.0, HOLDS), (UNIGRAM, FAILS)])
def test_an_alternative_holds_only_where_its_own_reference_has_learned(
    tmp_path, with_warmup, expected
):
    """Nets that learn neither with warm-up nor without it do not need it."""

    def loss(config):
        if config["choices"]["norm"] == "pre":
            return 2.0
        return {0: UNIGRAM - 0.1, 50: with_warmup}[config["train"]["warmup_steps"]]

    for norm in ("pre", "post"):
        laws = {0: LINEAR, 50: LINEAR}
        write_sweep(tmp_path, "q", laws, axis="train.warmup_steps", loss=loss, norm=norm)
    axis = {"axis": "train.warmup_steps", "of": 0}
    part = {
        "name": "loss", "where": {"norm": "post"}, "reference": {"norm": "pre"},
        "measure": "loss_difference", "with": {**axis, "to": 50}, "criterion": {"at_least": 9},
        "or": {
            "name": "seeds", "measure": "not_learned_at", "with": axis,
            "criterion": {"at_least": 0.5},
            "reference": {"norm": "post", "train.warmup_steps": 50},
        },
    }  # fmt: skip
    found = result_of(tmp_path, part, EXPONENT)
    assert found.findings[0].verdict == expected
    assert found.findings[0].otherwise == "seeds: >= 0.5"
    named = {HOLDS: ("seeds", 6), FAILS: ("loss", None)}[expected]
    assert (found.findings[0].part, found.findings[0].count) == named


def test_clauses_of_a_statement_are_judged_apart(tmp_path):
    write_sweep(tmp_path, "q", LINEAR)
    linear = {**EXPONENT, "clause": "is linear", "name": "a"}
    exponential = {**BEATS, "clause": "is exponential", "name": "b"}
    found = result_of(tmp_path, linear, exponential, scope="linear branch")
    assert (found.verdict, found.said) == (HALF, "half (linear branch)")
    assert found.reason == "is linear: holds; is exponential: fails"
    both = result_of(tmp_path, linear, {**exponential, "clause": "is linear"})
    assert (both.verdict, both.said) == (CONDITIONAL, "conditional")


def test_runs_that_are_others_than_planned_are_said(tmp_path):
    sweep = write_sweep(tmp_path, "q", LINEAR, seeds=range(5))
    plan = {"seed": ["0", "1", "2", "3", "4"], "depth": ["12"], "model.width": [128]}
    found = evaluate(claim_of(EXPONENT), {"q": SweepData(sweep, plan)}, with_theory=False)
    assert found.verdict == HOLDS
    assert found.departures == ["on runs of q with model.width=64 instead of 128"]
    assert found.reason == found.departures[0]
    same = {**plan, "model.width": ["64"]}
    assert not evaluate(claim_of(EXPONENT), {"q": SweepData(sweep, same)}, False).departures


def test_a_claim_that_is_not_measured_says_why():
    found = evaluate(claim_of(not_measured="no machine"), {})
    assert (found.verdict, found.reason, found.findings) == (NOT_MEASURED, "no machine", ())


def test_a_key_that_no_run_has_is_refused(tmp_path):
    write_sweep(tmp_path, "q", LINEAR)
    given = {"axis": "init.build.nope", "of": 1, "to": 2}
    for part in ({"over": ["init.build.nope"]}, {"measure": "last_ratio", "with": given}):
        with pytest.raises(BadClaim, match=r"^q: init.build.nope: no run of q has this key$"):
            result_of(tmp_path, {"measure": "increment", **part})
