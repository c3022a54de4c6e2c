"""``python -m stability.catalogue``: text, json, and refusals in one line."""

import json

import pytest

from stability.catalogue.command import main


def test_a_word_of_an_entry_finds_it_and_prints_what_is_known(capsys):
    assert main(["norm", "2203.00555"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("norm=deepnorm  DeepNorm\n")
    assert "equation  N(2.21 x + f(x))" in printed
    assert "source    arXiv:2203.00555" in printed
    assert "adds      +36,864 parameters, +110,640 operations a token" in printed
    assert "norm=pre" not in printed
    assert max(map(len, printed.splitlines())) <= 100


def test_json_holds_the_same_as_numbers(capsys):
    assert main(["--json", "norm_type", "layernorm"]) == 0
    (found,) = [e for e in json.loads(capsys.readouterr().out) if e["name"] == "layernorm"]
    assert found["kind"] == "norm_type"
    assert found["source"] == "arXiv:1607.06450"
    assert (found["parameters"], found["flops_per_token"]) == (0, 0.0)


def test_what_has_no_cost_has_none(capsys):
    assert main(["--json", "optimizer"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {e["name"] for e in found} >= {"adamw", "sgd"}
    assert all(e["parameters"] is None and e["flops_per_token"] is None for e in found)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["moved", "heaven"], "moved heaven: nothing matches; kinds are norm, norm_type"),
        (["--config-dir", "missing"], "--config-dir=missing: is not a folder"),
    ],
)
def test_what_cannot_be_listed_is_refused_in_a_line(words, said, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"stability.catalogue: {said}")
    assert error.count("\n") == 1
