"""Every default is legal; what is not is refused with its key, and what does nothing is known."""

import copy
import math

import pytest

from stability.config.knobs import GROUPS, KNOBS, Config, ConfigError, unknown
from stability.config.rules import UPDATE_KEYS, keys_without_effect, validate
from tiny import composed


def test_every_default_is_legal():
    validate(composed())


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
    ("model.attention", "plain"),
    ("model.position", "alibi"),
    ("model.dropout", 1.0),
    ("model.sublayers", "mlp_attn"),
    ("model.vocab", "many"),
    ("train.steps", -1),
    ("train.batch_size", 0),
    ("train.accumulate", 9),
    ("train.lr", -1e-3),
    ("train.schedule", "step"),
    ("train.warmup_steps", 10_000),
    ("optimizer.betas", [0.9]),
    ("optimizer.betas", [0.9, 1.0]),
    ("optimizer.eps", "tiny"),
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
    ("norm_type.build", {}),
    ("init.build", {}),
    ("data.build", {}),
    ("model.choices", {}),
]


@pytest.mark.parametrize(("key", "value"), REFUSED, ids=lambda v: str(v)[:30])
def test_what_is_not_legal_is_refused_and_named(key, value):
    with pytest.raises(ConfigError) as refused:
        validate(composed({key: value}))
    assert refused.value.key == key
    assert refused.value.reason
    assert str(refused.value).startswith(f"{key}=")


@pytest.mark.parametrize(
    ("old", "value", "new"),
    [
        ("model.activation", "relu", "activation"),
        ("train.optimizer", "sgd", "optimizer"),
        ("train.betas", [0.8, 0.9], "optimizer.betas"),
        ("train.eps", 1e-6, "optimizer.eps"),
        ("train.independent_weight_decay", True, "optimizer.independent_weight_decay"),
    ],
)
@pytest.mark.parametrize("read", [validate, Config.from_plain], ids=["composed", "on disk"])
def test_a_key_of_version_0_1_is_refused_with_its_new_name(old, value, new, read):
    assert new in (*KNOBS, *GROUPS)
    with pytest.raises(ConfigError, match=rf"^{old}=.*: is now called {new}$"):
        read(composed({old: value}))


def test_the_kernel_that_was_called_plain_is_refused_with_the_names_that_there_are():
    with pytest.raises(ConfigError, match=r"model.attention=plain: must be one of fused, math"):
        validate(composed({"model.attention": "plain"}))


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
        ("model.mlp_ratio", 1 / 64),
        ("model.position", "rope"),
        ("train.warmup_steps", 150),
        ("train.accumulate", 8),
        ("train.accumulate", 3),
        ("compile", True),
        ("checkpointing", True),
        ("device", "mps"),
        ("dtype", "fp64"),
        ("train.lr", 2**63 - 1),
    ],
)
def test_the_edge_of_a_legal_range_is_legal(key, value):
    validate(composed({key: value}))


def test_what_contradicts_is_refused():
    for changes, key in [
        ({"model.position": "rope", "model.width": 12, "model.heads": 4}, "model.position"),
        ({"model.position": "rope", "model.sublayers": "mlp"}, "model.position"),
        ({"device": "mps", "dtype": "fp64"}, "dtype"),
        ({"train.warmup_steps": 11, "train.steps": 10}, "train.warmup_steps"),
        ({"train.accumulate": 5, "train.batch_size": 4}, "train.accumulate"),
        ({"train.accumulate": 3, "compile": True}, "train.accumulate"),
        ({"compile": True, "checkpointing": True}, "checkpointing"),
    ]:
        with pytest.raises(ConfigError) as refused:
            validate(composed(changes))
        assert refused.value.key == key


def test_a_compiled_model_takes_parts_of_equal_size():
    validate(composed({"train.accumulate": 2, "compile": True}))


@pytest.mark.parametrize("value", [2**63, -(2**63)])
def test_a_number_beyond_64_bits_is_refused_as_such(value):
    with pytest.raises(ConfigError, match="must fit into 64 bits"):
        validate(composed({"train.lr": value}))


@pytest.mark.parametrize(
    ("key", "first", "most"),
    [
        ("train.stepz", "train.steps", 3),
        ("context", "model.context?", 1),
        ("train.width", "model.width", 3),
        ("build", "norm.build, norm_type.build, init.build?", 3),
    ],
)
def test_an_unknown_key_is_refused_with_at_most_three_that_look_like_it(key, first, most):
    message = str(unknown(key, 3))
    assert message.startswith(f"{key}=3: unknown key; did you mean {first}")
    assert message.count(",") < most


def test_an_unknown_key_that_looks_like_none_is_sent_to_the_help():
    assert str(unknown("surprise", 1)) == "surprise=1: unknown key; --help lists every key"


def test_heads_do_not_matter_where_there_is_no_attention():
    validate(composed({"model.sublayers": "mlp", "model.heads": 5}))


@pytest.mark.parametrize(
    ("choices", "changes", "key"),
    [
        ({}, {}, "init.std"),
        ({}, {}, "data.path"),
        ({}, {"model.sublayers": "linear"}, "activation"),
        ({}, {"model.sublayers": "mlp"}, "model.heads"),
        ({}, {"model.sublayers": "mlp"}, "model.attention"),
        ({"optimizer": "sgd"}, {}, "optimizer.betas"),
        ({"optimizer": "sgd"}, {}, "optimizer.eps"),
        (
            {"optimizer": "adam"},
            {"train.weight_decay": 0.1},
            "optimizer.independent_weight_decay",
        ),
        ({}, {}, "optimizer.independent_weight_decay"),
    ],
)
def test_a_knob_without_effect_is_known_with_its_reason(choices, changes, key):
    assert keys_without_effect(Config.from_plain(composed(changes, **choices)))[key]


ALWAYS = {"init.std", "data.path", "data.val_path", "data.vocab"}
"""Without effect where the init has no std and the data have neither a file nor a vocabulary."""


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, {"optimizer.independent_weight_decay", "train.state_dtype"}),
        ({"train.weight_decay": 0.1}, {"train.state_dtype"}),
        ({"dtype": "bf16"}, {"optimizer.independent_weight_decay"}),
        ({"dtype": "fp16", "train.weight_decay": 0.1}, set()),
        (
            {"dtype": "fp64", "train.weight_decay": 0.1},
            {"train.state_dtype", "tf32"},
        ),
        (
            {"dtype": "fp16", "train.weight_decay": 0.1, "model.sublayers": "mlp"},
            {"model.heads", "model.causal", "model.attention"},
        ),
        (
            {"dtype": "fp16", "train.weight_decay": 0.1, "model.sublayers": "linear"},
            {
                "activation",
                *(f"model.{n}" for n in ("heads", "causal", "attention", "mlp_ratio")),
            },
        ),
        ({"dtype": "fp16", "train.weight_decay": 0.1, "on_nonfinite": "skip"}, {"record.ring"}),
        ({"dtype": "fp16", "train.weight_decay": 0.1, "record.every": 1}, {"record.ring"}),
        ({"dtype": "fp16", "train.weight_decay": 0.1, "train.steps": 1}, set()),
        ({"dtype": "fp16", "train.weight_decay": 0.1, "train.steps": 0}, set(UPDATE_KEYS)),
    ],
)
def test_exactly_the_knobs_without_effect_are_inert(changes, more):
    assert set(keys_without_effect(Config.from_plain(composed(changes)))) == ALWAYS | more


def test_a_knob_with_effect_is_not_called_inert():
    assert "init.std" not in keys_without_effect(Config.from_plain(composed(init="normal")))
    assert "data.path" not in keys_without_effect(Config.from_plain(composed(data="text")))
    assert "data.vocab" not in keys_without_effect(Config.from_plain(composed(data="markov")))
    decaying = keys_without_effect(Config.from_plain(composed({"train.weight_decay": 0.1})))
    assert not any(key.startswith("optimizer") for key in decaying)


def test_checking_changes_nothing():
    config = composed()
    before = copy.deepcopy(config)
    keys_without_effect(validate(config))
    assert config == before


@pytest.mark.parametrize("sign", [1, -1])
def test_a_whole_number_beyond_64_bits_is_refused_whatever_its_sign(sign):
    for value, beyond in ((2**63 - 1, False), (2**63, True)):
        with pytest.raises(ConfigError) as refused:
            validate(composed({"depth": sign * value}))
        assert ("64 bits" in str(refused.value)) is beyond
