"""The rules that a composed config obeys, and the keys that have no effect in it."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from stability.config.knobs import GROUPS, KNOBS, Config, ConfigError, Model, Option
from stability.config.ranges import spelled

LARGEST = 2**63 - 1
"""Largest whole number that tables and tensors hold."""


def validate(plain: Mapping[str, Any]) -> Config:
    """The typed config of plain containers, composed and resolved, checked against every rule.

    What needs the data, a class or a device is checked where that is built.

    Raises:
        ConfigError: for the first key that is unknown, of another type, out of range or at odds
            with another.
    """
    config = Config.from_plain(plain)
    for key, knob in KNOBS.items():
        value = attrgetter(key)(config)
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ConfigError(key, value, "must fit into 64 bits")
        if not knob.legal.test(value):
            raise ConfigError(key, spelled(value), f"must be {knob.legal.text}")
    for group in GROUPS:
        option = getattr(config, group)
        if isinstance(option, Option) and "_target_" not in option.build:
            raise ConfigError(f"{group}.build", option.build, "needs a _target_")
    _check_pairs(config)
    return config


def check_shape(model: Model) -> None:
    """Raise ConfigError where widths, heads and positions do not fit each other."""
    if model.sublayers == "attn_mlp":
        width, heads = model.width, model.heads
        if width % heads:
            raise ConfigError("model.heads", heads, f"must divide model.width={width}")
        if model.position == "rope" and (width // heads) % 2:
            raise ConfigError(
                "model.position", "rope", f"needs an even head width, not {width // heads}"
            )
    elif model.position == "rope":
        raise ConfigError("model.position", "rope", "needs model.sublayers=attn_mlp")
    if round(model.mlp_ratio * model.width) < 1:
        raise ConfigError("model.mlp_ratio", model.mlp_ratio, "gives an MLP without units")


def _check_pairs(config: Config) -> None:
    check_shape(config.model)
    train = config.train
    if train.warmup_steps > train.steps:
        raise ConfigError(
            "train.warmup_steps", train.warmup_steps, f"must be <= train.steps={train.steps}"
        )
    if train.accumulate > train.batch_size:
        raise ConfigError(
            "train.accumulate",
            train.accumulate,
            f"must be <= train.batch_size={train.batch_size}",
        )
    if config.compile and config.checkpointing:
        raise ConfigError("checkpointing", True, "a compiled block plans its own recomputation")
    if config.compile and train.batch_size % train.accumulate:
        raise ConfigError(
            "train.accumulate",
            train.accumulate,
            f"must divide train.batch_size={train.batch_size} with compile=true",
        )
    if config.device == "mps" and config.dtype == "fp64":
        raise ConfigError("dtype", "fp64", "MPS has no fp64; use fp32, bf16 or fp16")


OF_UPDATES = (
    *("train.optimizer", "train.lr", "train.schedule", "train.warmup_steps"),
    *("train.weight_decay", "train.independent_weight_decay", "train.betas", "train.eps"),
    *("train.state_dtype", "train.checkpoint_every"),
    *("record.every", "record.flush_every", "record.ring"),
)
"""Keys without effect where there is no update, and so a single step."""


def inert(config: Config) -> dict[str, str]:
    """Keys that have no effect in this config, each with the reason.

    A key that a user sets and that is inert in every run of a sweep is refused.
    """
    return {**_inert_in_the_model(config), **_inert_in_training(config)}


def _inert_in_the_model(config: Config) -> dict[str, str]:
    model, found = config.model, {}
    for key in ("norm_type.eps", "init.std", "data.path", "data.val_path", "data.vocab"):
        group, name = key.split(".")
        if name not in getattr(config, group).build:
            found[key] = f"{group}={config.choices[group]} has no {name}"
    if model.sublayers != "attn_mlp":
        for name in ("heads", "causal", "attention"):
            found[f"model.{name}"] = f"model.sublayers={model.sublayers} has no attention"
    if model.sublayers == "linear":
        for name in ("mlp_ratio", "activation"):
            found[f"model.{name}"] = "model.sublayers=linear has no MLP"
    return found


def _inert_in_training(config: Config) -> dict[str, str]:
    train, found = config.train, {}
    if train.optimizer == "sgd":
        for name in ("betas", "eps"):
            found[f"train.{name}"] = "train.optimizer=sgd has no moments"
    if train.weight_decay == 0 or train.optimizer != "adamw":
        found["train.independent_weight_decay"] = "it needs adamw and a train.weight_decay > 0"
    if config.dtype not in ("bf16", "fp16"):
        found["train.state_dtype"] = f"dtype={config.dtype} has parameters in at least fp32"
    if config.on_nonfinite != "stop":
        found["record.ring"] = f"on_nonfinite={config.on_nonfinite} does not stop at a bad step"
    if config.record.every == 1:
        found["record.ring"] = "record.every=1 records every step at full detail"
    if train.steps == 0:
        found |= dict.fromkeys(OF_UPDATES, "train.steps=0 is one pass without an update")
    if config.dtype == "fp64":
        found["tf32"] = "dtype=fp64 has no fp32 products"
    return found
