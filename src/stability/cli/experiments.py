"""Experiments: sweeps that are kept as a yaml, with a config and a grid."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stability.config import folders
from stability.config.knobs import ConfigError


class Experiment(NamedTuple):
    """The content of an experiment's yaml."""

    config: dict[str, Any]
    """What Hydra composes: keys with values, and ``defaults`` that choose options."""
    grid: list[str]
    """The words KEY=VALUE[,VALUE...] of ``hydra.sweeper.params``."""


def load(name: str | None, config_dirs: Sequence[Path]) -> Experiment:
    """The experiment that was chosen; an empty one if none was.

    Raises:
        ConfigError: its file is damaged, or it sets more of Hydra than its grid.
    """
    if name is None:
        return Experiment({}, [])
    try:
        loaded = OmegaConf.load(folders.experiments(config_dirs)[name])
        content: Any = OmegaConf.to_container(loaded)
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError("experiments", name, f"cannot be read ({error})") from error
    match content:
        case {"hydra": {"sweeper": {"params": dict(params), **more}, **others}}:
            allowed = not (more or others)
        case dict():
            params, allowed = {}, "hydra" not in content
        case _:
            raise ConfigError("experiments", name, "must hold keys and values")
    defaults = [d for d in content.get("defaults") or [] if isinstance(d, dict)]
    if not allowed or any("hydra/" in str(group) for d in defaults for group in d):
        legal = "may set hydra.sweeper.params only; the launcher belongs on the command line"
        raise ConfigError("experiments", name, legal)
    content.pop("hydra", None)
    return Experiment(content, [f"{key}={_joined(value)}" for key, value in params.items()])


def _joined(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list) else value
