"""The names of measured numbers on the axes of claims' figures."""

import re
from pathlib import Path

import pytest
from matplotlib.mathtext import MathTextParser

from stability.claims.labels import LABELS, label
from stability.claims.measures import measures
from stability.claims.syntax import read_claims

FILES = {file.stem: file for file in Path(__file__).parents[2].glob("experiments/*.yaml")}


def test_every_number_that_can_be_drawn_has_a_label_and_nothing_else():
    numbers = {name for name, measure in measures().items() if not measure.gives_text}
    assert numbers == {*LABELS}


@pytest.mark.parametrize("claim", read_claims(FILES), ids=lambda claim: claim.id)
def test_no_label_of_a_claim_holds_a_name_of_the_code_and_each_can_be_drawn(claim):
    for part in claim.parts:
        for measurement in part.measurements:
            text = label(measurement.measure.name, measurement.settings)
            plain = re.sub(r"\$.*?\$", "", text)
            assert "_" not in plain and "`" not in plain
            MathTextParser("path").parse(text)


PAIR = {"axis": "init", "of": "normal", "to": "xavier"}


@pytest.mark.parametrize(
    ("measure", "given", "text"),
    [
        ("branch_jacobian_times_sigma_exponent", {}, r"\sigma_k"),
        ("first_token_over_others", {"block": "median"}, "median over blocks"),
        ("growth_exponent", {"quantity": "gradient", "token": "median"}, "median token"),
        ("last_ratio", PAIR, "init normal over init xavier"),
        ("decay_per_block", {"token": "median"}, r"\delta_{1,t}"),
        ("excess_gap", PAIR, "init normal minus 3 times init xavier"),
        ("lost_share_ratio", {"of": "bf16", "to": "fp32"}, "bf16 over fp32"),
        ("mean_value", {"probe": "token_cosine", "item": "grad"}, "(gradient)"),
    ],
)
def test_a_label_says_what_the_settings_choose(measure, given, text):
    assert text in label(measure, given)


def test_what_is_not_multiplied_by_sigma_does_not_say_so():
    assert r"\sigma" not in label("branch_jacobian_exponent", {})


def test_the_name_of_a_measure_without_a_label_is_its_first_line():
    assert label("first_overflow", {}).startswith("Sublayer and site of the first non-finite")
