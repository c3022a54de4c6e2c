"""What a command line asks for, and the cells that this becomes: composed, checked and named."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stability.cli import checks, overrides
from stability.cli.compose import Composer
from stability.cli.flags import Flags
from stability.cli.overrides import MAX_RUNS, Assignment, Setting, is_launcher_key
from stability.config import folders
from stability.config.identity import dotted
from stability.config.knobs import KNOBS, ConfigError
from stability.sweep import grid, progress
from stability.sweep.grid import Cell

NON_IDENTITY_KEYS = {k for k in KNOBS if not KNOBS[k].identity and k != "train.steps"}
"""Keys that do not change which runs an experiment consists of."""


class Experiment(NamedTuple):
    """An experiment: a sweep that is kept as a yaml, with a config and a grid."""

    config: dict[str, Any]
    """What Hydra composes: keys with values, and ``defaults`` that choose options."""
    grid: list[str]
    """The words KEY=VALUE[,VALUE...] of ``hydra.sweeper.params``."""


@dataclass(frozen=True)
class Request:
    """What a command line asks for."""

    experiment: Experiment
    grid: dict[str, Setting]
    """The experiment's own grid."""
    typed: dict[str, Setting]
    """Keys of the runs that the command line sets."""
    launcher: dict[str, Setting]
    """``hydra/launcher`` and the keys below ``hydra.launcher``."""

    @property
    def settings(self) -> dict[str, Setting]:
        """By key: what the command line says replaces what the experiment's grid says."""
        return self.grid | self.typed

    def given(self) -> dict[str, Any]:
        """Dotted keys that the user set, on the command line or in the experiment, with values.

        If the command line changes the experiment's runs, only its grid counts: its other keys were
        meant for other runs (with `experiments=vanishing train.steps=0`, record.every has no
        effect).
        """
        as_written = self.typed.keys() <= NON_IDENTITY_KEYS
        content = self.experiment.config if as_written else {}
        content = {k: v for k, v in content.items() if k not in ("defaults", "claim")}
        return dotted(content) | dotted({key: s.given for key, s in self.settings.items()})


def request(flags: Flags) -> Request:
    """Parse the words of a command line, and the experiment that it chooses.

    Raises:
        ConfigError: for the first word that is refused.
    """
    settings = overrides.parse(flags.words, flags.config_dirs)
    chosen = settings.pop("experiments", None)
    experiment = _experiment(chosen.given if chosen else None, flags.config_dirs)
    of_launcher = {k: s for k, s in settings.items() if is_launcher_key(k)}
    typed = {k: s for k, s in settings.items() if k not in of_launcher}
    return Request(
        experiment, overrides.parse(experiment.grid, flags.config_dirs), typed, of_launcher
    )


def _experiment(name: str | None, config_dirs: Sequence[Path]) -> Experiment:
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


def cells(asked: Request, composer: Composer) -> list[Cell]:
    """The runs of a command, in their folders; writes nothing.

    Raises:
        ConfigError: for the first thing that is refused.
    """
    settings = asked.settings
    lines = _product(settings.values())
    tracked = progress.track(lines, "composing", progress.console())
    configs, hashes = checks.check([composer.compose(x) for x in tracked], asked.given())
    swept = [key for key, setting in settings.items() if setting.swept]
    words = [[assignment.word for assignment in line] for line in lines]
    return grid.place(grid.cells(configs, words, hashes, swept))


def _product(settings: Iterable[Setting]) -> list[tuple[Assignment, ...]]:
    """All combinations, the first key varying slowest."""
    columns = [setting.values for setting in settings]
    number = math.prod(map(len, columns))
    if number > MAX_RUNS:
        raise ConfigError("grid", f"{number} runs", f"a sweep has at most {MAX_RUNS}")
    return list(itertools.product(*columns))
