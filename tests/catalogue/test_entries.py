"""Entries of the catalogue: what each option says of itself."""

import pytest

from stability.catalogue.command import opened
from stability.catalogue.cost import Cost
from stability.catalogue.entries import Entry
from stability.config import folders
from stability.config.knobs import GROUPS
from tiny import options

PARTS = '''
from stability.parts.placements import Placement
from torch import nn


class Halved(Placement):
    """x + f(N(x)) / 2."""

    source = "arXiv:0000.00001"
    combine = "nothing"

    def __call__(self, x, f, norm):
        return x + 0.5 * f(norm(x))


class Doubled(nn.Module):
    """2 x."""

    def __init__(self, width, bias):
        super().__init__()

    def forward(self, x):
        return 2 * x
'''


@pytest.fixture(scope="module")
def entries():
    with opened([]) as found:
        return {(entry.kind, entry.name): entry for entry in found.entries()}


def test_every_option_is_listed_once_by_kind_and_order(entries):
    assert set(entries) == {(g, n) for g in GROUPS for n in folders.options(g)}
    kinds = [kind for kind, _ in entries]
    assert kinds == sorted(kinds, key=GROUPS.index)
    for group in set(GROUPS) - {"model"}:
        assert [name for kind, name in entries if kind == group] == options(group)


def test_every_entry_says_what_it_is_and_where_it_is_from(entries):
    for key, entry in entries.items():
        assert entry.label and entry.equation and entry.source, key
        assert "``" not in entry.equation, key


def test_models_come_smallest_first_and_say_what_they_set(entries):
    names = [name for kind, name in entries if kind == "model"]
    assert names.index("nano") < names.index("gpt2") < names.index("gpt2_xl")
    assert entries["model", "gpt2"].equation == (
        "activation=gelu_tanh depth=12 model.width=768 model.heads=12 model.context=1024"
        " model.vocab=50257"
    )
    assert entries["model", "gpt2"].source == "GPT-2 (124M), Radford et al. 2019."


def test_a_placement_gives_its_equation_its_stds_and_its_final_norm(entries):
    assert entries["norm", "pre"].equation == "x + f(N(x)); a norm before the head"
    assert entries["norm", "deepnorm"].equation == (
        "N(2.21 x + f(x)); std of v, attn_out, mlp_in, mlp_out times 0.319"
    )
    assert entries["norm", "post"].equation == "N(x + f(x))"


def test_an_init_gives_the_std_of_each_role(entries):
    # 0.02 / sqrt(24); sqrt(2 / (768 + 768)) and sqrt(2 / (768 + 3072))
    assert entries["init", "gpt2"].equation.endswith(
        "0.02 (q, k, v, mlp_in); 0.00408 (attn_out, mlp_out)"
    )
    assert entries["init", "xavier"].equation.endswith(
        "0.0361 (q, k, v, attn_out); 0.0228 (mlp_in, mlp_out)"
    )


def test_costs_are_those_beyond_the_option_that_is_compared_with(entries):
    width, norms = 768, 2 * 24 + 1
    with opened([]) as catalogue:

        def added(kind, name):
            return catalogue.added(entries[kind, name])

        assert added("norm", "peri") == Cost(norms * 2 * width, norms * (5 * width + 2))
        assert added("norm", "none") == added("norm_type", "layernorm") == Cost(0, 0.0)
        assert added("optimizer", "adamw") is None
        assert added("model", "gpt2").parameters == 124_439_808  # with tied embeddings


@pytest.mark.parametrize(
    ("words", "matches"),
    [
        ([], True),
        (["norm"], True),
        (["norm_type"], False),
        (["norm", "2502"], True),
        (["GEMMA"], True),
        (["norm", "moved"], False),
        (["init", "2502"], False),
    ],
)
def test_every_word_must_be_the_kind_or_in_the_text(words, matches):
    entry = Entry("norm", "peri", "Peri-LN", "x", "arXiv:2502.02732 (Gemma)", "", "")
    assert entry.matches(words) is matches


def test_parts_of_other_folders_are_listed_with_what_they_say(tmp_path):
    (tmp_path / "outside_parts.py").write_text(PARTS)
    for group, name, cls in (("norm", "halved", "Halved"), ("norm_type", "doubled", "Doubled")):
        (tmp_path / group).mkdir()
        text = f"label: {name}\norder: 90\nbuild: {{_target_: outside_parts.{cls}}}\n"
        (tmp_path / group / f"{name}.yaml").write_text(text)
    with opened([tmp_path]) as found:
        entries = {entry.name: entry for entry in found.entries()}
        halved, doubled = entries["halved"], entries["doubled"]
        assert (halved.equation, halved.source) == ("x + 0.5 f(N(x))", "arXiv:0000.00001")
        assert (halved.reported, halved.combine) == ("", "nothing")
        assert (doubled.equation, doubled.source) == ("2 x", "")
        assert found.added(halved).flops == 24 * ((5 * 768 + 2) + 768)
        assert found.added(doubled).parameters == -25 * 2 * 768
