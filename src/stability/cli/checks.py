"""A grid of composed configs is checked before anything is written: the cheap rules for all first.

What needs torch (the classes to build, the device) is checked afterwards, in
`stability.sweep.worker.check`.
"""

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stability.config import instantiate
from stability.config.knobs import Config, ConfigError
from stability.config.names import BLOCK_SUBLAYERS
from stability.config.ranges import spelled
from stability.config.rules import keys_without_effect, validate
from stability.parts import data
from stability.parts.placements import Placement, ending, norms_used


def check(
    composed: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
) -> tuple[list[Config], list[str]]:
    """Check every config by the rules and against its data: typed configs, hashes of the data.

    Args:
        composed: all cells of the grid, in plain containers.
        given: dotted keys that the user set, with their values.

    Raises:
        ConfigError: for the first thing that is refused.
    """
    configs = [validate(plain) for plain in composed]
    for config in configs:
        instantiate.refuse_missing(config.allow)
        instantiate.allow(*config.allow)
    _refuse_keys_without_effect(configs, given)
    _check_out(configs[0])
    return configs, [data.source(config).sha256 for config in configs]


def _refuse_keys_without_effect(configs: Sequence[Config], given: Mapping[str, Any]) -> None:
    """Refuse a key that the user set and that has no effect in any run."""
    reasons = [keys_without_effect(config) for config in configs]
    if any(key.partition(".")[0] == "norm_type" for key in given):
        for config, found in zip(configs, reasons, strict=True):
            if not _has_norm(config):
                found["norm_type"] = f"norm={config.choices['norm']} has no norm"
    for key, value in given.items():
        why = [[w for k, w in found.items() if f"{key}.".startswith(f"{k}.")] for found in reasons]
        if all(why):
            raise ConfigError(key, spelled(value), f"has no effect: {why[0][0]}")


def _has_norm(config: Config) -> bool:
    """Whether the placement asks for a norm in any block, or at the end of the stack."""
    node, sublayers = config.norm.build, BLOCK_SUBLAYERS[config.model.sublayers]
    for place in itertools.product(range(config.depth), sublayers):
        placement = instantiate.build(node, "norm.build", config.depth, *place, kind=Placement)
        what = "its equation cannot be read"
        with instantiate.refusing_errors_of("norm.build._target_", node["_target_"], what):
            if ending(placement)[1] or norms_used(placement):
                return True
    return False


def _check_out(config: Config) -> None:
    """Whether the sweep's folder can be made and written to, without making it."""
    folder = Path(config.out) / (config.name or "")
    try:
        while not folder.exists():
            folder = folder.parent
        writable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    except (OSError, ValueError) as error:
        raise ConfigError("out", config.out, f"cannot be a folder ({error})") from error
    if not writable:
        legal = "is not writable" if folder.is_dir() else "is not a folder"
        raise ConfigError("out", config.out, f"{folder} {legal}")
