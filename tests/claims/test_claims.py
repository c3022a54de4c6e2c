"""Verdicts follow from data: known laws of growth in, the right word out."""

import inspect
import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml

from evidence_frames import EXPONENTIAL, LINEAR, NOISE, ROOT, noisy, write_sweep
from stability.claims import command, forest, measures, report, sweep_data, syntax, verdict
from stability.claims.evaluate import Finding, Result, evaluate
from stability.claims.sweep_data import Sweep
from stability.claims.verdict import (
    BY_CONSTRUCTION,
    CONDITIONAL,
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    NOT_MEASURED,
    REPORTED,
)
from stability.config import folders
from stability.figures.drawing.select import CannotFill
from synthetic import UNIGRAM

EXPONENT = {
    "measure": "growth_exponent",
    "with": {"start": 4, "less_embedding": True, "least_growth": 10},
    "criterion": {"between": [0.9, 1.1]},
}
BEATS = {"measure": "exponential_over_power", "criterion": {"at_least": 0}}
SIGMA = {
    "measure": "growth_exponent",
    "with": {"quantity": "sigma"},
    "criterion": {"between": [0.45, 0.55]},
}
SLOPE = {"measure": "slope_per_sublayer", "criterion": {"between": [0.38, 0.42]}}


def claim(*parts, **node):
    whole = {"statement": "s", "source": "s", "parts": list(parts), **node}
    return syntax.claim("q", whole, {})


def result(tmp_path, *parts, **node):
    sweeps = {p.name: Sweep(p) for p in tmp_path.iterdir() if p.is_dir()}
    return evaluate(claim(*parts, **node), sweeps, with_theory=False)


def word(tmp_path, *parts, **node):
    return result(tmp_path, *parts, **node).verdict


# -- growth laws against criteria ------------------------------------------------------------------


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
    assert word(tmp_path, part) == expected


def test_the_fitted_number_is_that_of_the_law(tmp_path):
    write_sweep(tmp_path, "q", noisy(lambda n: 3.0 * np.maximum(n, 1) ** 0.7))
    (found,) = result(tmp_path, {"measure": "growth_exponent"}).findings
    assert found.value == pytest.approx(0.7)
    assert found.low == pytest.approx(found.high)
    assert (found.verdict, found.seeds) == (REPORTED, 6)


def test_gradients_are_followed_on_their_way_down(tmp_path):
    grow = noisy(lambda n: 1.5 ** (12.0 - n))
    write_sweep(tmp_path, "q", LINEAR, gradient=grow)
    part = {**BEATS, "with": {"quantity": "gradient"}, "each": {"token": ["all", "median"]}}
    assert word(tmp_path, part) == HOLDS
    decay = {"measure": "decay_per_block", "criterion": {"at_most": -0.1}}
    found = result(tmp_path, decay)
    assert found.verdict == FAILS
    assert found.findings[0].value == pytest.approx(math.log(1.5))


def test_an_exponent_over_depths_pairs_the_runs_of_a_seed(tmp_path):
    laws = {L: noisy(lambda n, L=L: 1e-3 + n * L**0.25) for L in (4, 8, 16)}
    write_sweep(tmp_path, "q", laws, axis="depth")
    (found,) = result(tmp_path, {"measure": "increment_over_depth"}).findings
    assert found.value == pytest.approx(1.25)


# -- the rules -------------------------------------------------------------------------------------


def test_fewer_than_five_seeds_are_no_measurement(tmp_path):
    write_sweep(tmp_path, "q", LINEAR, seeds=range(4))
    found = result(tmp_path, EXPONENT)
    assert found.verdict == NOT_MEASURED
    assert "4 seeds, at least 5" in found.reason


def test_without_runs_it_says_which_command_makes_them(tmp_path):
    found = result(tmp_path, EXPONENT)
    assert found.verdict == NOT_MEASURED
    assert "experiments=q" in found.reason


def test_a_claim_waits_for_all_of_its_parts(tmp_path):
    write_sweep(tmp_path, "q", LINEAR)
    found = result(tmp_path, EXPONENT, {**SIGMA, "name": "elsewhere", "runs": "other"})
    assert found.verdict == NOT_MEASURED
    assert "experiments=other" in found.reason


def test_runs_that_no_filter_leaves_are_no_error(tmp_path):
    write_sweep(tmp_path, "q", LINEAR)
    found = result(tmp_path, {**EXPONENT, "where": {"norm": "post", "depth": 3}})
    assert (found.verdict, "no finished run" in found.reason) == (NOT_MEASURED, True)


def test_settings_that_differ_are_conditional_and_named(tmp_path):
    write_sweep(tmp_path, "q", {64: LINEAR, 128: EXPONENTIAL}, axis="model.width")
    found = result(tmp_path, {**EXPONENT, "over": ["model.width"]})
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
    found = result(tmp_path, {**part, "criterion": {"at_most": -0.1}})
    assert found.verdict == CONDITIONAL
    assert found.reason == "holds: token=median; fails: token=all"


def test_an_inconclusive_setting_leaves_a_claim_open_unless_two_others_differ(tmp_path):
    laws = {64: LINEAR, 96: noisy(lambda n: 1e-3 + 0.4 * n, 0.4), 128: EXPONENTIAL}
    write_sweep(tmp_path, "q", laws, axis="model.width")
    part = {**EXPONENT, "over": ["model.width"]}
    assert word(tmp_path, {**part, "where": {"model.width": [64, 96]}}) == INCONCLUSIVE
    assert word(tmp_path, part) == CONDITIONAL


def test_parts_of_one_statement_must_all_hold(tmp_path):
    write_sweep(tmp_path, "q", LINEAR)
    assert word(tmp_path, EXPONENT, BEATS) == CONDITIONAL
    assert word(tmp_path, EXPONENT, BEATS, together=True) == FAILS
    assert word(tmp_path, EXPONENT, {**SIGMA, "name": "sigma"}, together=True) == HOLDS


def test_an_alternative_may_hold_in_its_place(tmp_path):
    write_sweep(tmp_path, "q", LINEAR)
    assert word(tmp_path, {**BEATS, "or": SLOPE}) == HOLDS
    assert word(tmp_path, {**BEATS, "or": BEATS}) == FAILS


def test_a_changed_criterion_changes_the_verdict_and_nothing_else(tmp_path):
    write_sweep(tmp_path, "q", noisy(lambda n: 1e-3 + 0.4 * n, 0.05))
    before = result(tmp_path, EXPONENT).findings[0]
    after = result(tmp_path, {**EXPONENT, "criterion": {"between": [1.9, 2.1]}}).findings[0]
    assert (before.verdict, after.verdict) == (HOLDS, FAILS)
    assert (before.value, before.low, before.high) == (after.value, after.low, after.high)
    loose = result(tmp_path, {**EXPONENT, "criterion": {"at_least": before.low}}).findings[0]
    straddling = result(tmp_path, {**EXPONENT, "criterion": {"at_least": before.value}})
    assert (loose.verdict, straddling.verdict) == (HOLDS, INCONCLUSIVE)


def test_seeds_that_cannot_answer_are_counted_never_dropped_in_silence(tmp_path):
    flat = noisy(lambda n: np.ones(len(n)))
    write_sweep(tmp_path, "q", LINEAR)
    write_sweep(tmp_path, "q", flat, seeds=range(6, 9))
    found = result(tmp_path, EXPONENT).findings[0]
    assert (found.verdict, found.seeds) == (HOLDS, 6)
    assert "3 of 9 seeds left out: variance grows 1 times only" in found.reason


def test_what_does_not_stand_out_of_its_noise_is_not_measured(tmp_path):
    def drift(n, rng):
        return 1 + 0.001 * n * (1 + 3 * rng.standard_normal())

    write_sweep(tmp_path, "q", drift)
    part = {"measure": "increment", "criterion": {"at_least": 0}}
    part["clear"] = {"measure": "increment", "errors": 5}
    found = result(tmp_path, part)
    assert found.verdict == NOT_MEASURED
    assert "within 5 standard errors of 0 at depth 12" in found.reason


def test_theory_is_put_to_the_same_measure(tmp_path):
    shape = {"model.sublayers": "linear", "model.width": 32, "init": "lecun", "norm_type.eps": 0.0}
    sweep = write_sweep(tmp_path, "q", LINEAR, depth=4, **shape)
    part = {"measure": "slope_per_sublayer"}
    sweeps = {"q": Sweep(sweep)}
    assert evaluate(claim(part), sweeps).findings[0].theory is None  # no tokens: no theory
    x_BT = np.arange(16).reshape(2, 8)
    for folder in sweep.glob("run_*"):
        np.savez(folder / "batch0.npz", x=x_BT, y=x_BT)
    assert evaluate(claim(part), sweeps).findings[0].theory == pytest.approx(1, abs=1e-9)
    assert evaluate(claim({**part, "theory": False}), sweeps).findings[0].theory is None


# -- training --------------------------------------------------------------------------------------


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
    assert word(tmp_path, WARMUP) == expected
    or_else = {"measure": "not_learned_at", "with": {"axis": "train.warmup_steps", "of": 0}}
    or_else["criterion"] = {"at_least": 0.5}
    assert word(tmp_path, {**WARMUP, "or": or_else}) == expected


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
    (found,) = result(tmp_path, part).findings
    assert found.value == pytest.approx(2.0 + math.log(3) / 10)
    assert "lr=0.001" in found.reason


# -- verdicts from numbers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "criterion", "expected"),
    [
        ([0.6] * 5, {"at_least": 0.5, "fails": {"at_most": 0.1}}, HOLDS),
        ([0.3] * 5, {"at_least": 0.5, "fails": {"at_most": 0.1}}, INCONCLUSIVE),
        ([-2.0] * 5, {"at_least": 0.5, "fails": {"at_most": 0.1}}, FAILS),
        ([1.0] * 5, None, REPORTED),
        (["a"] * 5, {"is": "a"}, HOLDS),
        (["a", "b"] * 3, {"is": "a"}, INCONCLUSIVE),
        (["b"] * 5, {"is": "a"}, FAILS),
        ([1.0] * 4, {"at_least": 0}, NOT_MEASURED),
    ],
)
def test_a_criterion_is_judged_by_the_whole_interval(values, criterion, expected):
    assert verdict.judge(values, criterion).verdict == expected


def test_a_geometric_mean_has_its_interval_on_the_logarithm():
    found = verdict.judge([1e-5, 1e-4, 1e-3, 1e-4, 1e-4], None, geometric=True)
    assert found.value == pytest.approx(1e-4)
    assert found.low * found.high == pytest.approx(1e-8)
    assert found.low > 0


@pytest.mark.parametrize(
    "criterion", [{}, {"between": [2, 1]}, {"at_least": "x"}, {"above": 1}, {"between": [1]}]
)
def test_a_criterion_that_says_nothing_is_refused(criterion):
    with pytest.raises(verdict.BadCriterion):
        verdict.bounds(criterion)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measure": "nope"}, "no measure nope"),
        ({"with": {"nope": 1}}, "has no setting nope"),
        ({"nope": 1}, "unknown key nope"),
        ({"mean": "harmonic"}, "mean=harmonic"),
        ({"each": {"nope": [1]}}, "has no setting nope"),
        ({"each": {"token": "all"}}, "each.token=all: must be a list"),
        ({"where": {"model.wdth": 64}}, "model.wdth: is no key of a config"),
        ({"over": ["dpth"]}, "dpth: is no key of a config"),
        ({"over": "init"}, "over=init: must be a list"),
    ],
)
def test_a_part_that_is_written_wrongly_is_refused(change, message):
    with pytest.raises(syntax.BadClaim, match=message):
        claim({**EXPONENT, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"statement": None}, "statement=None: must be a text"),
        ({"source": 3}, "source=3: must be a text"),
        ({"together": "no"}, "together=no: must be true or false"),
        ({"by_construction": 3, "parts": []}, "by_construction=3: must be a text"),
        ({"like": ["a"]}, "must name a claim that has parts"),
        ({"like": "nowhere"}, "must name a claim that has parts"),
    ],
)
def test_a_claim_that_is_written_wrongly_is_refused_before_anything_is_evaluated(change, message):
    with pytest.raises(syntax.BadClaim, match=message):
        claim(EXPONENT, **change)


# -- the experiments and the command ---------------------------------------------------------------


def test_every_claim_in_experiments_can_be_read_and_has_a_page_for_its_result():
    known = folders.experiments()
    for c in syntax.read(known):
        page = known[c.name.removesuffix("_gpu")].with_suffix(".md")
        assert report.START in page.read_text(), page
        if c.by_construction:
            path, _, name = c.by_construction.partition("::")
            root = folders.experiments_dir().parent
            assert f"def {name}(" in (root / path).read_text(), c.by_construction


def test_every_claim_shares_runs_that_some_experiment_makes():
    known = folders.experiments()
    for c in syntax.read(known):
        for part in c.parts:
            sweep = yaml.safe_load(known[part.runs or c.runs].read_text())
            assert "hydra" in sweep, f"{c.name}: {part.runs or c.runs} has no sweep"


@pytest.mark.parametrize("name", sorted(measures.measures()))
def test_every_measure_says_what_it_measures_and_reads_a_table(name):
    function = measures.measures()[name]
    assert inspect.getdoc(function)
    assert measures.tables(function)


def test_the_command_writes_every_form_of_the_table(tmp_path, capsys, monkeypatch):
    mine = tmp_path / "mine"
    (mine / "experiments").mkdir(parents=True)
    node = {"claim": {"statement": "it | grows", "source": "s", "figure": "variance"}}
    node["claim"]["parts"] = [{**EXPONENT, "name": "GPT"}]
    (mine / "experiments" / "my_claim.yaml").write_text(yaml.safe_dump(node))
    page = mine / "experiments" / "my_claim.md"
    page.write_text(f"# Mine\n\n{report.START}\nbefore\n{report.END}\n\nafter\n")
    write_sweep(tmp_path / "out", "my_claim", LINEAR)
    asked = ["--config-dir", str(mine), "--claims", "my-claim", "--no-theory", "--pages"]
    there = str(tmp_path / "out")
    assert command.main([there, *asked, "--out", there]) == 0
    assert "holds" in capsys.readouterr().out
    (fact,) = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert (fact["claim"], fact["verdict"]) == ("my-claim", HOLDS)
    assert fact["findings"][0]["value"] == pytest.approx(1, abs=0.01)
    assert "my-claim,GPT" in (tmp_path / "out" / "claims.csv").read_text()
    assert "| [my-claim](#my-claim) | holds |" in (tmp_path / "out" / "claims.md").read_text()
    filled = page.read_text()
    assert "**holds**" in filled
    assert "before" not in filled
    assert filled.endswith("\n\nafter\n")


def test_a_choice_of_claims_leaves_the_files_of_all_of_them_alone(tmp_path, capsys):
    write_sweep(tmp_path / "out", "pre_forward_linear", LINEAR)
    there, names = str(tmp_path / "out"), [f"claims.{form}" for form in ("csv", "json", "md")]
    for choice in (["--claims", "pre-forward-linear"], ["--law", "init"]):
        assert command.main([there, "--no-theory", *choice]) == 0
        assert "pre-forward-linear" in capsys.readouterr().out
        assert not (tmp_path / "out" / names[0]).exists()
        assert command.main([there, "--no-theory", *choice, "--out", str(tmp_path / "own")]) == 0
        assert sorted(p.name for p in (tmp_path / "own").iterdir()) == names
    assert command.main([there, "--no-theory"]) == 0
    assert all((tmp_path / "out" / name).exists() for name in names)


def test_a_report_keeps_the_prose_and_shows_each_claim_with_its_figure(tmp_path, capsys):
    write_sweep(tmp_path / "out", "pre_forward_linear", LINEAR)
    page = tmp_path / "page.md"
    page.write_text(f"# Mine\n\n{report.START}\nbefore\n{report.END}\n\nafter\n")
    asked = ["--claims", "pre-forward-linear,two-residual-adds", "--no-theory"]
    assert command.main([str(tmp_path / "out"), *asked, "--report", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("# Mine\n") and text.endswith("\n\nafter\n") and "before" not in text
    assert "### two-residual-adds" in text and f"**{BY_CONSTRUCTION}**" in text
    shown = re.findall(r"!\[.*\]\((.*)\)", text)
    assert shown == ["page/pre_forward_linear.png"] and (tmp_path / shown[0]).stat().st_size > 1000
    for words in (
        "no place",
        f"{report.START}\nmy prose\n",
        f"{report.END}\n{report.START}\nprose",
    ):
        page.write_text(words)
        assert report.fill(words, ["new"]) == words
        assert command.main([str(tmp_path / "out"), *asked, "--report", str(page)]) == 2
        assert page.read_text() == words and "--report" in capsys.readouterr().err
    page.write_text(f"### Mine\n\n**Bold** words.\n\n{report.START}\n{report.END}\n")
    assert command.main([str(tmp_path / "out"), *asked, "--report", str(page)]) == 0
    assert page.read_text().startswith("### Mine\n\n**Bold** words.")


def test_a_report_is_not_replaced_by_one_that_knows_less(tmp_path, capsys):
    write_sweep(tmp_path / "out", "pre_forward_linear", LINEAR)
    page, out = tmp_path / "page.md", str(tmp_path / "out")
    page.write_text(f"{report.START}\n{report.END}\n")
    asked = ["--no-theory", "--report", str(page)]
    assert command.main([out, "--claims", "pre-forward-linear,two-residual-adds", *asked]) == 0
    before = page.read_text().replace("**not measured**", "**holds**")
    page.write_text(before)
    write_sweep(tmp_path / "empty", "another", LINEAR)
    for words in ([out, "--claims", "two-residual-adds"], [str(tmp_path / "empty")]):
        assert command.main([*words, *asked]) == 2
        assert "would be lost: pre-forward-linear" in capsys.readouterr().err
        assert page.read_text() == before
    page.write_text(before.replace("**holds**", "**not measured**"))
    assert command.main([out, *asked]) == 0
    assert page.read_text().count("### ") > before.count("### ")


def test_a_page_links_only_pages_that_there_are(tmp_path):
    result = Result(
        syntax.claim("q", {"statement": "s", "source": "s", "by_construction": "t"}, {}),
        BY_CONSTRUCTION,
        "t",
    )
    assert "experiments/q.md" not in "\n".join(report.report([result], {}, {}))
    assert "experiments/q.md" in "\n".join(report.report([result], {}, {"q": "q.md"}))


def test_a_report_says_what_a_verdict_rests_on_and_counts_settings():
    base = Finding("q", "GPT", "", "last_ratio", ">= 1", HOLDS, 1.0)
    found = [replace(base, setting=f"depth={L}") for L in range(6)]
    found += [replace(base, setting="depth=9", verdict=FAILS)]
    found += [replace(base, part="linear branch", criterion="0 to 1")]
    node = {"statement": "s", "source": "s", "parts": [{**EXPONENT, "name": "GPT"}]}
    result = Result(syntax.claim("q", node, {}), CONDITIONAL, "", found)
    text = "\n".join(report.report([result], {}, {}))
    assert "| GPT: >= 1; linear branch: 0 to 1 |" in text
    assert "- holds: GPT (6 of 7 settings); linear branch\n- fails: GPT (depth=9)" in text


def test_json_is_json_whatever_a_criterion_admits(tmp_path):
    found = [Finding("q", "", "", "last_ratio", ">= 1", HOLDS, 2.0, admits=(1.0, math.inf))]
    node = {"statement": "s", "source": "s", "parts": [EXPONENT]}
    report.write([Result(syntax.claim("q", node, {}), HOLDS, "", found)], tmp_path)

    def refuse(word):
        raise AssertionError(word)

    (fact,) = json.loads((tmp_path / "claims.json").read_text(), parse_constant=refuse)
    assert fact["findings"][0]["admits"] == [1.0, None]


def test_of_two_bad_gradients_of_one_block_the_mlps_comes_first():
    def first(a, b):
        bad = pd.DataFrame({"dtype": ["fp16", "bf16"], "run": ["a", "b"]})
        bad["first_bad.step"], bad["first_bad.layer"], bad["first_bad.kind"] = 0, 3, "grad"
        bad["first_bad.sublayer"] = [a, b]
        return measures.measures()["overflows_first"](runs=bad, first="fp16", others=["bf16"])

    assert first("mlp", "attn") == 1
    assert first("attn", "mlp") == 0


def test_an_identity_needs_no_runs(tmp_path):
    found = evaluate(
        syntax.claim("q", {"statement": "s", "source": "s", "by_construction": "t"}, {}), {}
    )
    assert found.verdict == BY_CONSTRUCTION


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "does not exist"),
        ([".", "--claims", "nope"], "--claims nope"),
        ([".", "--claims", "ln-jacobian", "--law", "training"], "is a law of init"),
        ([".", "--config-dir", "/nowhere"], "--config-dir /nowhere: is no folder"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, words, message):
    path = str(tmp_path) if words[0] == "." else str(tmp_path / words[0])
    assert command.main([path, *words[1:]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_run_on_a_wider_machine_shares_the_claim_of_its_experiment():
    node = {"statement": "s", "source": "s", "parts": [EXPONENT]}
    found = syntax.claim("q_gpu", {"like": "q"}, {"q": node})
    assert (found.runs, found.statement) == ("q_gpu", "s")


def test_it_takes_no_part_from_runs_of_a_third_experiment():
    parts = [EXPONENT, {**EXPONENT, "name": "small", "runs": "q_linear_branch"}]
    node = {"statement": "s", "source": "s", "parts": parts}
    (part,) = syntax.claim("q_gpu", {"like": "q"}, {"q": node}).parts
    assert part.runs == ""


def test_means_of_noise_are_one_and_bytes_are_compared_between_runs_of_a_seed():
    width = 400
    x = np.random.default_rng(0).standard_normal((2000, width))
    ratio = float((abs(x.mean(1)) / x.std(1)).mean())
    runs = pd.DataFrame(
        {"run": ["a", "b"], "norm_type": ["layernorm", "rmsnorm"], "model.width": width}
    )
    rows = [("a", "token_mean", ratio), ("a", "norm_bytes", 10.0), ("b", "norm_bytes", 25.0)]
    probes = pd.DataFrame(rows, columns=["run", "probe", "value"])
    found = measures.measures()
    assert found["mean_over_noise"](probes=probes[:1], runs=runs[:1]) == pytest.approx(1, rel=0.05)
    given = {"axis": "norm_type", "of": "rmsnorm", "to": "layernorm"}
    assert found["norm_bytes_ratio"](probes=probes, runs=runs, **given) == 2.5


def test_a_forest_has_a_panel_per_measure_and_criterion_and_a_line_per_number():
    names = "last_ratio", "overflow_block", "first_overflow"
    base = Finding("c", "GPT", "", names[0], ">= 1", HOLDS, 2.0, low=1.5, high=2.5, theory=2.1)
    findings = [
        replace(base, setting="a", admits=(1.0, math.inf)),
        replace(base, setting="b", admits=(1.0, math.inf), verdict=FAILS, value=0.5, theory=None),
        replace(base, measure=names[1], criterion="", value=3.0),
        replace(base, measure=names[2], value="attn scores"),
    ]
    first, second = forest.draw(findings).axes
    assert "Var(x_L)" in first.get_xlabel() and "criterion: >= 1" in first.get_xlabel()
    assert "Blocks passed" in second.get_xlabel() and "reported" in second.get_xlabel()
    assert [t.get_text() for t in first.get_yticklabels()] == ["a", "b"]
    assert [t.get_text() for t in second.get_yticklabels()] == ["GPT"]
    assert len([line for line in first.lines if line.get_marker() == "|"]) == 1
    (band,) = first.patches
    assert band.get_x() == pytest.approx(1.0)
    with pytest.raises(CannotFill):
        forest.draw(findings[3:])


def test_parts_that_nobody_could_tell_apart_are_refused():
    node = {
        "statement": "s",
        "source": "s",
        "parts": [EXPONENT, {**EXPONENT, "where": {"depth": 6}}],
    }
    with pytest.raises(syntax.BadClaim, match="give each a name"):
        syntax.claim("q", node, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"level": 95}, "level=95"),
        ({"level": "high"}, "level=high"),
        ({"criterion": {"is": "x", "at_least": 3}}, "must be one of between"),
        ({"criterion": {"at_least": 1, "fails": {"foo": 5}}}, "must be one of between"),
    ],
)
def test_what_cannot_be_judged_is_refused_when_read(tmp_path, change, message):
    node = {"statement": "s", "source": "s", "parts": [{**EXPONENT, **change}]}
    path = tmp_path / "q.yaml"
    path.write_text(yaml.safe_dump({"claim": node}))
    with pytest.raises(syntax.BadClaim, match=message):
        syntax.read({"q": path})


@pytest.mark.parametrize("text", ["claim: hello", "{", "- 1"])
def test_a_file_that_is_no_experiment_is_one_line(tmp_path, text):
    (tmp_path / "q.yaml").write_text(text)
    with pytest.raises(syntax.BadClaim, match="q: "):
        syntax.read({"q": tmp_path / "q.yaml"})


def test_a_claim_that_cannot_be_evaluated_as_written_is_one_line(tmp_path, capsys):
    mine = tmp_path / "mine" / "experiments"
    mine.mkdir(parents=True)
    node = {"statement": "s", "source": "s", "parts": [{**EXPONENT, "over": ["nowhere"]}]}
    (mine / "my_claim.yaml").write_text(yaml.safe_dump({"claim": node}))
    write_sweep(tmp_path / "out", "my_claim", LINEAR)
    asked = ["--config-dir", str(mine.parent), "--claims", "my-claim"]
    assert command.main([str(tmp_path / "out"), *asked]) == 2
    error = capsys.readouterr().err
    assert "my_claim" in error and error.count("\n") == 1


def test_pages_keep_their_results_where_nothing_has_been_run(tmp_path):
    mine = tmp_path / "mine" / "experiments"
    mine.mkdir(parents=True)
    node = {"statement": "s", "source": "s", "parts": [EXPONENT]}
    (mine / "my_claim.yaml").write_text(yaml.safe_dump({"claim": node}))
    page = mine / "my_claim.md"
    page.write_text(f"{report.START}\nmeasured\n{report.END}\n")
    write_sweep(tmp_path / "out", "another", LINEAR)
    asked = ["--config-dir", str(mine.parent), "--claims", "my-claim", "--pages"]
    assert command.main([str(tmp_path / "out"), *asked]) == 0
    assert "measured\n" in page.read_text()


def test_a_run_that_is_missing_among_formats_is_a_seed_left_out():
    runs = pd.DataFrame({"run": ["a"], "dtype": ["fp16"], "status": ["diverged"]})
    with pytest.raises(measures.Unmeasured, match="no run with dtype = bf16"):
        measures.measures()["overflows_first"](runs=runs, first="fp16", others=["bf16"])


def test_what_has_come_through_saturated_softmax_is_no_theory_and_no_overflow(
    tmp_path, monkeypatch
):
    rows = pd.DataFrame(
        [(0, "mlp", "resid_post", "grad", 8, 1.0, 1.0, 1.0, 0.1, True)],
        columns=[
            *("layer", "sublayer", "site", "kind", "numel"),
            *("var", "rms", "token_rms_median", "first_share", "saturated"),
        ],
    )  # fmt: skip
    monkeypatch.setattr(sweep_data, "overlay", lambda folder, cache: rows)
    runs = pd.DataFrame({"run": ["a"], "folder": ["a"]})
    predicted = Sweep(tmp_path)._predicted(runs)
    assert predicted[sweep_data.SIZES].isna().all(axis=None)
    assert predicted["nonfinite"].tolist() == [0]
