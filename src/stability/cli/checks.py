"""A grid of composed configs is checked before anything is written: the cheap rules for all first.

What needs torch (the classes to build, the device) is checked afterwards, in `worker.check`.
"""

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from stability.config import instantiate
from stability.config.knobs import GROUPS, KNOBS, Config, ConfigError, unknown
from stability.config.names import BLOCK_SUBLAYERS
from stability.config.rules import inert, validate
from stability.parts import data
from stability.parts.placements import norms_used


def refuse_sweep(values: Mapping[str, str]) -> None:
    """Refuse a grid over what does not tell runs apart.

    Args:
        values: the keys that are swept, with their values as they were typed.

    Raises:
        ConfigError: for the first such key.
    """
    for key, text in values.items():
        if key == "experiments":
            raise ConfigError(key, text, "takes one; give each experiment a command of its own")
        knob = next((k for k in KNOBS.values() if f"{key}.".startswith(f"{k.key}.")), None)
        if knob is None and key not in GROUPS:
            raise unknown(key, text)
        if knob is not None and not knob.identity and not key.startswith("data."):
            raise ConfigError(key, text, "takes one value: it is no part of a run's identity")


def check(
    composed: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
) -> tuple[list[Config], list[str]]:
    """Check every config by the rules and against its data: typed configs, hashes of the data.

    Args:
        composed: all cells of the grid, in plain containers.
        given: keys that the user set, with their values.

    Raises:
        ConfigError: for the first thing that is refused.
    """
    configs = [validate(plain) for plain in composed]
    for config in configs:
        instantiate.refuse_missing(config.allow)
        instantiate.allow(*config.allow)
    _refuse_inert(configs, given)
    _check_out(configs[0])
    return configs, [data.source(config).sha256 for config in configs]


def _refuse_inert(configs: Sequence[Config], given: Mapping[str, Any]) -> None:
    reasons = [inert(config) for config in configs]
    if any(key.partition(".")[0] == "norm_type" for key in given):
        for config, found in zip(configs, reasons, strict=True):
            if not _has_norm(config):
                found["norm_type"] = f"norm={config.choices['norm']} has no norm"
    for key, value in given.items():
        why = [[w for k, w in found.items() if f"{key}.".startswith(f"{k}.")] for found in reasons]
        if all(why):
            raise ConfigError(key, value, f"has no effect: {why[0][0]}")


def _has_norm(config: Config) -> bool:
    """Whether the placement asks for a norm anywhere; of one that cannot be asked, we take it so.

    What is wrong with that one is said where the model's parts are checked.
    """
    depth, build = config.depth, json.dumps(config.norm.build, sort_keys=True)
    with suppress(Exception):
        return _asks_for_norm(build, depth, config.model.sublayers)
    return True


@cache
def _asks_for_norm(build: str, depth: int, sublayers: str) -> bool:
    node = json.loads(build)
    places = itertools.product(range(depth), BLOCK_SUBLAYERS[sublayers])
    made = (instantiate.build(node, "norm.build", depth, *place) for place in places)
    return any(placement.final_norm or norms_used(placement) for placement in made)


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
        legal = "is not writable" if folder.is_dir() else "is no folder"
        raise ConfigError("out", config.out, f"{folder} {legal}")
