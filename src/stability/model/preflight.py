"""Whether a config can be built, asked before a run is: memory, classes, device.

An external class is asked once for what the model will ask of it, so that its errors are refusals
of the key that names it instead of failed runs.
"""

import itertools
import math
import os
from typing import Any

import torch
from torch import nn

from stability.config.instantiate import RefusedArgument, refusing_errors_of
from stability.config.knobs import Config, ConfigError
from stability.config.names import BLOCK_SUBLAYERS, EMBED_LAYER, Key
from stability.model.build import activation_of, device_of, init_of, parts_of, update_rule_of
from stability.model.optim import make_optimizers
from stability.model.sublayers import BRANCHES
from stability.parts.inits import Weight, start_std
from stability.parts.placements import ending, norms_used
from stability.parts.precision import PRECISIONS

Branches = dict[str, nn.Module]


def check(config: Config) -> None:
    """Refuse what cannot be built, without building the whole model.

    Raises:
        ConfigError: the size, a class, its arguments or the device is refused.
    """
    branches = _branches_without_memory(config)
    _refuse_too_large(config, branches)
    _try_parts(config, branches)
    _try_init(config, branches)
    _try_activation(config)
    _try_optimizer(config, branches)
    device = device_of(config)
    if config.tf32 and device.type != "cuda":
        raise ConfigError("tf32", True, f"has no effect: the device is {device.type}, not cuda")
    if config.flush_subnormal:
        _try_to_flush(device)


def _try_to_flush(device: torch.device) -> None:
    if device.type != "cpu":
        raise ConfigError(
            "flush_subnormal", True, f"has no effect: the device is {device.type}, not cpu"
        )
    try:
        if not torch.set_flush_denormal(True):
            raise ConfigError("flush_subnormal", True, "this CPU cannot do it")
    finally:
        torch.set_flush_denormal(False)


def _branches_without_memory(config: Config) -> Branches:
    """The branches of one block on the meta device.

    Raises:
        ConfigError: the activation is refused, or a size overflows.
    """
    activation = activation_of(config)
    try:
        with torch.device("meta"):
            names = BLOCK_SUBLAYERS[config.model.sublayers]
            return {name: BRANCHES[name](config.model, activation) for name in names}
    except (RuntimeError, OverflowError) as error:
        model = config.choices["model"]
        raise ConfigError("model", model, f"cannot be built here ({error})") from error


def _refuse_too_large(config: Config, branches: Branches) -> None:
    """Refuse weights that alone take more than the memory in which they are made, in fp32 or wider.

    The first key whose own part does not fit is named: the width, by the matrices of one block.
    """
    shape, depth = config.model, config.depth
    block = sum(p.numel() for branch in branches.values() for p in branch.parameters())
    bytes_per_weight = PRECISIONS[config.dtype].at_least_fp32.itemsize
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {"model.width": (shape.width, block), "depth": (depth, depth * block)}
    if shape.vocab != "auto":
        found["model.vocab"] = shape.vocab, shape.vocab * shape.width
    for key, (value, entries) in found.items():
        if entries * bytes_per_weight > memory_bytes:
            takes, has = (
                f"{size / 1e9:,.0f} GB" for size in (entries * bytes_per_weight, memory_bytes)
            )
            what = "a block" if key == "model.width" else "the weights"
            raise ConfigError(key, value, f"{what} would take {takes}; this machine has {has}")


def _try_parts(config: Config, branches: Branches) -> None:
    """The placements of the first and the last block, their equations, and a norm."""
    parts = parts_of(config)
    target = config.norm.build["_target_"]
    for layer, sublayer in itertools.product((0, config.depth - 1), branches):
        placement = parts.placement(layer, sublayer)
        with refusing_errors_of("norm.build._target_", target, "its equation cannot be read"):
            norms_used(placement)
            ending(placement)
    if type(parts.norm()).forward is nn.Module.forward:
        target = config.norm_type.build["_target_"]
        raise ConfigError("norm_type.build._target_", target, "has no forward")


def _try_init(config: Config, branches: Branches) -> None:
    """The std of every matrix of the first block, and the placement's factor on it."""
    init, depth = init_of(config), config.depth
    targets = [group.build["_target_"] for group in (config.init, config.norm)]
    for sublayer, branch in branches.items():
        placement = parts_of(config).placement(0, sublayer)
        matrices = [(n, p.shape) for n, p in branch.named_parameters() if p.ndim == 2]
        for name, (fan_out, fan_in) in matrices:
            role = name.removesuffix(".weight")
            weight = Weight.of(role, (fan_in, fan_out), 0, depth, len(branches))
            with refusing_errors_of("init.build._target_", targets[0], f"std of {role}"):
                _require_finite_nonnegative(start_std(init, weight, None))
            with refusing_errors_of("norm.build._target_", targets[1], f"init_gain of {role}"):
                _require_finite_nonnegative(placement.init_gain(role))


def _try_activation(config: Config) -> None:
    """One call, on CPU tensors of the run's own dtype."""
    target = config.activation.build["_target_"]
    with refusing_errors_of("activation.build._target_", target, "cannot be called"):
        x = torch.zeros(2, 3, dtype=PRECISIONS[config.dtype].param)
        y = activation_of(config)(x)
        if y.shape != x.shape or y.dtype != x.dtype:
            raise ValueError(f"it makes {y.dtype} {[*y.shape]} of {x.dtype} {[*x.shape]}")


def _try_optimizer(config: Config, branches: Branches) -> None:
    """The optimizers of the weights of one block, a norm and an embedding; without a step."""
    rule, target = update_rule_of(config), config.optimizer.build["_target_"]
    weights: dict[Key, torch.Tensor] = {
        Key(0, sublayer, name.removesuffix(".weight")): p
        for sublayer, branch in branches.items()
        for name, p in branch.named_parameters()
    }
    with torch.device("meta"):
        weights[Key(0, "head", "norm.weight")] = nn.Parameter(torch.empty(config.model.width))
        weights[Key(EMBED_LAYER, "embed", "wte")] = nn.Parameter(torch.empty(2, config.model.width))
    with refusing_errors_of("optimizer.build._target_", target, "cannot make optimizers"):
        make_optimizers(rule, weights, config.train, fused=False)


def _require_finite_nonnegative(factor: Any) -> None:
    if not 0 <= float(factor) < math.inf:
        raise RefusedArgument(f"is {factor}, must be finite and >= 0")
