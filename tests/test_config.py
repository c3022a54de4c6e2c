"""Every knob is documented and its default legal; what is not legal is refused with its key."""

import copy
import math

import pytest

from stability.config import (
    AXES,
    GROUPS,
    KNOBS,
    ConfigError,
    digest,
    flatten,
    identity,
    inert,
    lookup,
    validate,
)
from tiny import CONF, composed


@pytest.mark.parametrize("key", KNOBS)
def test_every_knob_says_what_it_means(key):
    knob = KNOBS[key]
    assert knob.doc
    assert not knob.doc.endswith(".")


def test_every_default_is_legal():
    validate(composed())


def test_axes_and_groups_are_knobs():
    for axis in AXES:
        assert axis in KNOBS or f"{axis}.build" in KNOBS
    assert {p.name for p in CONF.iterdir() if p.is_dir()} == set(GROUPS)


def test_numbers_have_a_unit_or_are_ratios_and_counts():
    for key in ("depth", "model.context", "train.steps", "train.warmup_steps", "record.every"):
        assert KNOBS[key].unit


REFUSED = [
    ("depth", 0),
    ("depth", -3),
    ("depth", math.inf),
    ("depth", True),
    ("dtype", "fp8"),
    ("dtype", "FP16"),
    ("seed", -1),
    ("norm_type.eps", -1e-6),
    ("init.std", -0.1),
    ("init.embed_std", math.nan),
    ("data.pad_share", 1.0),
    ("data.vocab", 1),
    ("model.width", 0),
    ("model.heads", 5),
    ("model.context", 1),
    ("model.mlp_ratio", 0),
    ("model.mlp_ratio", 0.001),
    ("model.activation", "gleu"),
    ("model.position", "alibi"),
    ("model.dropout", 1.0),
    ("model.sublayers", "mlp_attn"),
    ("model.vocab", "many"),
    ("train.steps", -1),
    ("train.batch_size", 0),
    ("train.accumulate", 9),
    ("train.optimizer", "lion"),
    ("train.lr", -1e-3),
    ("train.schedule", "step"),
    ("train.warmup_steps", 10_000),
    ("train.betas", [0.9]),
    ("train.betas", [0.9, 1.0]),
    ("train.eps", "tiny"),
    ("train.clip", -1),
    ("train.state_dtype", "bf16"),
    ("train.eval_every", -1),
    ("train.eval_batches", 0),
    ("record.every", 0),
    ("record.kinds", []),
    ("record.kinds", ["act", "act"]),
    ("record.kinds", ["activation"]),
    ("record.sites", ["middle"]),
    ("record.flush_every", 0),
    ("loss_scale", "static"),
    ("loss_scale", 0),
    ("device", "tpu"),
    ("device", "cuda:x"),
    ("threads", 0),
    ("compile", "yes"),
    ("name", "../escape"),
    ("name", ".hidden"),
    ("name", "a=b"),
    ("name", "x" * 101),
    ("n_jobs", 0),
    ("n_jobs", "all"),
    ("depth", 10_001),
    ("seed", 2**32),
    ("threads", 1025),
    ("n_jobs", 1025),
    ("train.batch_size", 2**62),
    ("train.steps", 10**9 + 1),
    ("record.ring", 2**62),
    ("model.vocab", 2**62),
    ("data.vocab", 2**16 + 1),
    ("norm.order", -1),
    ("loss_scale", 1e39),
    ("loss_scale", 1e-60),
    ("lock_minutes", 1e-9),
    ("train.stepz", 3),
    ("norm.builds", {}),
    ("surprise", 1),
    ("norm.build", {}),
]


@pytest.mark.parametrize(("key", "value"), REFUSED, ids=lambda v: str(v)[:30])
def test_what_is_not_legal_is_refused_and_named(key, value):
    with pytest.raises(ConfigError) as refused:
        validate(composed({key: value}))
    assert refused.value.key == key
    assert refused.value.legal
    assert str(refused.value).startswith(f"{key}=")


def test_no_whole_number_is_accepted_without_an_upper_bound():
    whole = [key for key, knob in KNOBS.items() if type(knob.default) is int]
    whole += ["model.vocab", "data.vocab", "n_jobs"]
    assert not any(KNOBS[key].legal.test(2**63 - 1) for key in whole)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("depth", 1000),
        ("dtype", "amp_bf16"),
        ("train.steps", 0),
        ("loss_scale", "dynamic"),
        ("loss_scale", 1024),
        ("loss_scale", 1e30),
        ("loss_scale", 1e-30),
        ("model.vocab", 300),
        ("data.vocab", 300),
        ("device", "cuda:1"),
        ("name", "2026-01-01_12.00"),
        ("n_jobs", 2),
        ("norm_type.eps", 0),
        ("record.kinds", ["act"]),
    ],
)
def test_the_edge_of_a_legal_range_is_legal(key, value):
    validate(composed({key: value}))


def test_what_contradicts_is_refused():
    for changes, key in [
        ({"model.position": "rope", "model.width": 12, "model.heads": 4}, "model.position"),
        ({"model.position": "rope", "model.sublayers": "mlp"}, "model.position"),
        ({"device": "mps", "dtype": "fp64"}, "dtype"),
    ]:
        with pytest.raises(ConfigError) as refused:
            validate(composed(changes))
        assert refused.value.key == key


def test_heads_do_not_matter_where_there_is_no_attention():
    validate(composed({"model.sublayers": "mlp", "model.heads": 5}))


@pytest.mark.parametrize(
    ("choices", "changes", "key"),
    [
        ({}, {}, "init.std"),
        ({}, {}, "data.path"),
        ({}, {"model.sublayers": "linear"}, "model.activation"),
        ({}, {"model.sublayers": "mlp"}, "model.heads"),
        ({}, {"train.optimizer": "sgd"}, "train.betas"),
        ({}, {}, "train.independent_weight_decay"),
    ],
)
def test_a_knob_without_effect_is_known_with_its_reason(choices, changes, key):
    assert inert(composed(changes, **choices))[key]


def test_a_knob_with_effect_is_not_called_inert():
    assert "init.std" not in inert(composed(init="normal"))
    assert "data.path" not in inert(composed(data="text"))
    assert "data.vocab" not in inert(composed(data="markov"))
    assert "train.betas" not in inert(composed())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("out", "elsewhere"),
        ("name", "other"),
        ("device", "cpu"),
        ("n_jobs", 2),
        ("isolate", True),
        ("norm.label", "Another"),
        ("norm.order", 99),
        ("claim", {"criterion": 1}),
        ("train.steps", 7),
        ("train.keep_checkpoint", True),
        ("record.flush_every", 3),
        ("data.path", "moved.bin"),
    ],
)
def test_what_only_names_places_or_shows_a_run_is_not_part_of_it(key, value):
    one, other = composed(data="text"), composed({key: value}, data="text")
    assert digest(identity(one, "sha")) == digest(identity(other, "sha"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("depth", 7),
        ("dtype", "bf16"),
        ("seed", 1),
        ("threads", 2),
        ("train.lr", 2e-3),
        ("record.every", 5),
        ("init.embed_std", 0.03),
        ("norm_type.eps", 1e-6),
        ("model.vocab", 300),
        ("compile", True),
    ],
)
def test_what_changes_the_numbers_or_the_rows_makes_another_run(key, value):
    one, other = composed(), composed({key: value})
    assert digest(identity(one, "sha")) != digest(identity(other, "sha"))


def test_data_count_by_their_content():
    assert digest(identity(composed(), "a")) != digest(identity(composed(), "b"))


def test_an_option_is_part_of_the_run():
    assert digest(identity(composed(), "a")) != digest(identity(composed(norm="post"), "a"))


def test_the_digest_is_canonical():
    assert digest({"a": 1, "b": {"c": 2, "d": [3]}}) == digest(
        {"b": {"d": [3.0], "c": 2.0}, "a": 1}
    )
    assert digest({"lr": 1e-3}) == digest({"lr": 0.001})
    assert digest({"flag": True}) != digest({"flag": 1})
    assert len(digest({})) == 8


def test_the_digest_does_not_change_between_releases():
    """Folders on disk carry it: a change here orphans everyone's results."""
    assert digest({"depth": 6, "norm": "pre"}) == "4dff112a"


def test_flatten_gives_one_scalar_a_column():
    row = flatten(composed({"claim": {"criterion": 1}}))
    assert row["norm"] == "pre"
    assert row["norm.label"] == "Pre-LN"
    assert row["train.betas"] == "[0.9, 0.95]"
    assert row["norm.build._target_"] == "stability.placements.Pre"
    assert not any(key.startswith("claim") for key in row)
    assert all(v is None or isinstance(v, str | int | float | bool) for v in row.values())


def test_nothing_here_changes_the_config_it_is_given():
    config = composed()
    before = copy.deepcopy(config)
    validate(config), identity(config, "sha"), flatten(config), inert(config)
    assert config == before
    assert lookup(config, "train.lr") == 1e-3
