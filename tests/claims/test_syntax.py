"""A claim in yaml to typed parts, and what is refused on the way."""

from dataclasses import replace

import pytest
import yaml

from law_sweeps import EXPONENT, claim_of, node_of
from stability.claims import pages, syntax
from stability.claims.claim import Choose, Clear, Measurement, Part
from stability.claims.criterion import Criterion, Range
from stability.claims.measures import measures
from stability.claims.yaml_types import BadClaim
from stability.config import folders


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
        ({"measure": ["a"]}, "no measure"),
        ({"with": 3}, "with=3: must be a mapping"),
        ({"with": {"start": "x"}}, "start=x: must be a whole number"),
        ({"with": {"start": True}}, "start=True: must be a whole number"),
        ({"with": {"least_growth": "x"}}, "least_growth=x: must be a number"),
        ({"with": {"less_embedding": 1}}, "less_embedding=1: must be true or false"),
        ({"with": {"quantity": "size"}}, "quantity=size: must be one of variance, sigma, rms, gr"),
        ({"each": {"token": ["all", "mean"]}}, "token=mean: must be one of all, median"),
        ({"each": ["token"]}, "must be a mapping"),
        ({"measure": "last_ratio", "with": {"axis": "init"}}, "last_ratio needs the setting of"),
        (
            {"measure": "last_ratio", "with": {"axis": "int", "of": 1, "to": 2}},
            "axis: int: is no key of a config",
        ),
        (
            {"measure": "overflows_first", "with": {"first": "fp16", "others": "bf16"}},
            "others=bf16: must be a list",
        ),
        (
            {"measure": "overflows_first", "with": {"first": "fp16", "others": [16]}},
            "others=16: must be a text",
        ),
        ({"criterion": {"is": "x"}}, "growth_exponent needs between, at_least or at_most"),
        ({"measure": "first_overflow", "with": {}}, "first_overflow needs is"),
        ({"criterion": 5}, "criterion=5: must be a mapping"),
        ({"name": 3}, "name=3: must be a text"),
        ({"runs": ["a"]}, "must be a text"),
        ({"where": ["norm"]}, "must be a mapping"),
        ({"where": {"norm": {"a": 1}}}, "where.norm=.*: must be a value, or a list of values"),
        ({"where": {3: 1}}, "3: is no key of a config"),
        ({"reference": {"nrm": "pre"}}, "nrm: is no key of a config"),
        ({"reference": "pre"}, "must be a mapping"),
        ({"choose": {"axis": "train.lr"}}, "lacks where"),
        ({"choose": {"axis": "lr", "where": {}}}, "lr: is no key of a config"),
        ({"choose": "train.lr"}, "must be a mapping"),
        ({"clear": {"measure": "increment"}}, "lacks errors"),
        ({"clear": {"measure": "increment", "errors": "x"}}, "errors=x: must be a number"),
        ({"clear": {"measure": "last_ratio", "errors": 5}}, "last_ratio: must give a number"),
        ({"clear": {"measure": "first_overflow", "errors": 5}}, "first_overflow: must give a num"),
        ({"theory": "no"}, "theory=no: must be true or false"),
        ({"at": "middle"}, "at=middle: must be one of init, end, all"),
        ({"level": 1}, "level=1: must be between 0 and 1"),
        ({"level": True}, "level=True: must be between 0 and 1"),
        ({"or": "x"}, "must be a mapping"),
        ({"or": {"criterion": {"at_least": 1}}}, "lacks measure"),
        ({"or": {"measure": "nope"}}, "no measure nope"),
    ],
)
def test_a_part_that_is_written_wrongly_is_refused(change, message):
    with pytest.raises(BadClaim, match=message):
        claim_of({**EXPONENT, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"statement": None}, "statement=None: must be a text"),
        ({"source": 3}, "source=3: must be a text"),
        ({"together": "no"}, "together=no: must be true or false"),
        ({"by_construction": 3, "parts": []}, "by_construction=3: must be a text"),
        ({"like": ["a"]}, "must name a claim that has parts"),
        ({"like": "nowhere"}, "must name a claim that has parts"),
        ({"stage": "training init"}, "stage=training init: must be one of init, training"),
        ({"parts": "x"}, "parts=x: must be a list"),
        ({"parts": ["x"]}, "part=x: must be a mapping"),
        ({"parts": [{}]}, "lacks measure"),
        ({"parts": []}, "needs one of parts, by_construction, not_measured"),
        ({"not_measured": "why"}, "needs one of parts, by_construction, not_measured"),
        ({"not_measured": " ", "parts": []}, "not_measured= : must be a text"),
        ({"nope": 1}, "unknown key nope"),
        ({"figure": 3}, "figure=3: must be a text"),
    ],
)
def test_a_claim_that_is_written_wrongly_is_refused_before_anything_is_evaluated(change, message):
    with pytest.raises(BadClaim, match=message) as refused:
        syntax.claim("q", {**node_of(EXPONENT), **change}, {})
    assert str(refused.value).startswith("q: ") and "\n" not in str(refused.value)


def test_a_claim_without_a_statement_is_refused():
    with pytest.raises(BadClaim, match="q: lacks statement"):
        syntax.claim("q", {"source": "s", "parts": [EXPONENT]}, {})


def test_all_fields_of_a_part_arrive_with_their_types():
    part = {
        **EXPONENT, "name": "GPT", "clause": "grows", "runs": "other",
        "where": {"norm": "pre", "depth": [6, 24]},
        "over": ["init"], "each": {"token": ["all", "median"]}, "level": 0.9, "mean": "geometric",
        "at": "end", "reference": {"norm": "post"}, "theory": False,
        "clear": {"measure": "increment", "errors": 5},
        "choose": {"axis": "train.lr", "where": {"norm": "pre"}},
        "or": {"measure": "first_overflow", "with": {"kind": "grad"}, "criterion": {"is": "mlp"},
               "name": "other", "reference": {"norm": "peri"}},
    }  # fmt: skip
    (found,) = claim_of(part).parts
    first, other = found.measurements
    assert first == Measurement(
        measures()["growth_exponent"], EXPONENT["with"], Criterion(Range(0.9, 1.1))
    )
    assert other == Measurement(
        measures()["first_overflow"],
        {"kind": "grad"},
        Criterion(text="mlp"),
        "other",
        {"norm": ["peri"]},
    )
    assert replace(found, measurements=()) == Part(
        (), "GPT", "grows", "other", {"norm": ["pre"], "depth": [6, 24]}, ["init"],
        {"token": ["all", "median"]}, 0.9, "geometric", "end", {"norm": ["post"]},
        Clear(measures()["increment"], 5), Choose("train.lr", {"norm": ["pre"]}), theory=False,
    )  # fmt: skip
    assert found.config_keys == ["init", "train.lr"]


def test_each_gives_the_first_measure_every_combination_of_its_settings():
    part = {**EXPONENT, "each": {"token": ["all", "median"], "start": [1, 2]}, "or": EXPONENT}
    found = list(claim_of(part).parts[0].variants())
    assert [label for label, _ in found] == [
        [f"token={token}", f"start={start}"] for token in ("all", "median") for start in (1, 2)
    ]
    _, (first, other) = found[-1]
    assert first.settings == {**EXPONENT["with"], "token": "median", "start": 2}
    assert other.settings == EXPONENT["with"]


def test_an_axis_that_a_measure_compares_is_a_key_the_runs_must_have():
    given = {"axis": "norm_type", "of": "rmsnorm", "to": "layernorm"}
    part = {"measure": "last_ratio", "with": given, "over": ["depth"]}
    assert claim_of(part).parts[0].config_keys == ["depth", "norm_type"]


def test_a_claim_says_what_of_its_statement_it_judges():
    assert claim_of(EXPONENT, scope="linear branch").scope == "linear branch"
    assert claim_of(EXPONENT).scope == ""


def test_a_claim_names_the_sweeps_it_needs_once():
    named = [{**EXPONENT, "name": name, "runs": "other"} for name in "ab"]
    assert claim_of(EXPONENT, *named).sweeps == ["q", "other"]


def test_parts_of_one_name_are_refused():
    with pytest.raises(BadClaim, match="give each a name"):
        claim_of(EXPONENT, {**EXPONENT, "where": {"depth": 6}})


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
    path = tmp_path / "q.yaml"
    path.write_text(yaml.safe_dump({"claim": node_of({**EXPONENT, **change})}))
    with pytest.raises(BadClaim, match=message):
        syntax.read_claims({"q": path})


@pytest.mark.parametrize("text", ["claim: hello", "{", "- 1"])
def test_a_file_that_is_no_experiment_is_one_line(tmp_path, text):
    (tmp_path / "q.yaml").write_text(text)
    with pytest.raises(BadClaim, match="q: "):
        syntax.read_claims({"q": tmp_path / "q.yaml"})


def test_a_run_on_a_wider_machine_shares_the_claim_of_its_experiment():
    found = syntax.claim("q_gpu", {"like": "q"}, {"q": node_of(EXPONENT)})
    assert (found.runs, found.statement) == ("q_gpu", "s")


def test_it_takes_no_part_from_runs_of_a_third_experiment():
    node = node_of(EXPONENT, {**EXPONENT, "name": "small", "runs": "q_linear_branch"})
    (part,) = syntax.claim("q_gpu", {"like": "q"}, {"q": node}).parts
    assert part.runs == ""


def test_every_claim_in_experiments_can_be_read_and_has_a_page_for_its_result():
    known = folders.experiments()
    for c in syntax.read_claims(known):
        page = known[c.name.removesuffix("_gpu")].with_suffix(".md")
        assert pages.START in page.read_text(), page
        if c.by_construction:
            path, _, name = c.by_construction.partition("::")
            root = folders.experiments_dir().parent
            assert f"def {name}(" in (root / path).read_text(), c.by_construction


def test_every_claim_shares_runs_that_some_experiment_makes():
    known = folders.experiments()
    for c in syntax.read_claims(known):
        for part in c.parts:
            sweep = yaml.safe_load(known[part.runs or c.runs].read_text())
            assert "hydra" in sweep, f"{c.name}: {part.runs or c.runs} has no sweep"
