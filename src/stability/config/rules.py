"""The rules that a composed config obeys, and the keys that have no effect in it."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from stability.config.knobs import DTYPES, GROUPS, KNOBS, Config, ConfigError, Model, OptionConfig
from stability.config.names import BLOCK_SUBLAYERS, SUBLAYER_KINDS
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
            raise ConfigError(key, spelled(value), knob.legal.refusal(value))
    for group in GROUPS:
        option = getattr(config, group)
        if isinstance(option, OptionConfig) and "_target_" not in option.build:
            raise ConfigError(f"{group}.build", option.build, "needs a _target_")
    _check_pairs(config)
    return config


def check_shape(model: Model) -> None:
    """Raise ConfigError where widths, heads and positions do not fit each other."""
    with_heads = [
        option
        for option, names in BLOCK_SUBLAYERS.items()
        if any("model.heads" in SUBLAYER_KINDS[name].knobs for name in names)
    ]
    if model.sublayers in with_heads:
        width, heads = model.width, model.heads
        if width % heads:
            raise ConfigError("model.heads", heads, f"must divide model.width={width}")
        if model.position == "rope" and (width // heads) % 2:
            raise ConfigError(
                "model.position", "rope", f"needs an even head width, not {width // heads}"
            )
    elif model.position == "rope":
        raise ConfigError(
            "model.position", "rope", f"needs model.sublayers={', '.join(with_heads)}"
        )
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
    if config.device == "mps" and DTYPES[config.dtype].bits > 32:
        raise ConfigError("dtype", config.dtype, "MPS has no fp64; use fp32, bf16 or fp16")


UPDATE_KEYS = (
    *("optimizer", "train.lr", "train.schedule", "train.warmup_steps", "train.weight_decay"),
    *("train.state_dtype", "train.checkpoint_every"),
    *("record.every", "record.flush_every", "record.ring"),
)
"""Keys that have no effect with train.steps=0."""

OPTION_ARGUMENTS = (
    *("norm_type.eps", "init.std", "data.path", "data.val_path", "data.vocab"),
    *("optimizer.betas", "optimizer.eps", "optimizer.independent_weight_decay"),
)
"""Keys that only some options of their group read: those that pass it on under ``build``."""


def keys_without_effect(config: Config) -> dict[str, str]:
    """Keys that have no effect in this config, each with the reason.

    A key that a user sets and that has no effect in any run of a sweep is refused.
    """
    return {**_model_keys_without_effect(config), **_training_keys_without_effect(config)}


def _model_keys_without_effect(config: Config) -> dict[str, str]:
    model, found = config.model, {}
    for key in OPTION_ARGUMENTS:
        group, name = key.split(".")
        if name not in getattr(config, group).build:
            found[key] = f"{group}={config.choices[group]} has no {name}"
    present = BLOCK_SUBLAYERS[model.sublayers]
    read = {key for name in present for key in SUBLAYER_KINDS[name].knobs}
    for kind in SUBLAYER_KINDS.values():
        for key in set(kind.knobs) - read:
            found[key] = f"model.sublayers={model.sublayers} has no {kind.branch}"
    return found


def _training_keys_without_effect(config: Config) -> dict[str, str]:
    train, found = config.train, {}
    if train.weight_decay == 0:
        found["optimizer.independent_weight_decay"] = "train.weight_decay=0 is no decay"
    if DTYPES[config.dtype].bits >= 32:
        found["train.state_dtype"] = f"dtype={config.dtype} has parameters in at least fp32"
    if config.on_nonfinite != "stop":
        found["record.ring"] = f"on_nonfinite={config.on_nonfinite} does not stop at a bad step"
    if config.record.every == 1:
        found["record.ring"] = "record.every=1 records every step at full detail"
    if train.steps == 0:
        found |= dict.fromkeys(UPDATE_KEYS, "train.steps=0 is one pass without an update")
    if DTYPES[config.dtype].bits > 32:
        found["tf32"] = f"dtype={config.dtype} has no fp32 products"
    return found
