"""Composes configs by Hydra: conf/, an experiment, then the keys of one run."""

import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from stability.cli.overrides import Assignment
from stability.cli.refusal_text import Refused
from stability.config import folders
from stability.config.identity import dotted
from stability.config.knobs import GROUPS, Config, ConfigError, unknown
from stability.config.ranges import spelled
from stability.config.suggestions import must_be_one_of


@contextmanager
def refusing_hydra_errors() -> Iterator[None]:
    """Turn what Hydra and OmegaConf say of bad input into a refusal in one line.

    Raises:
        ConfigError: they raised an error.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        cause = error.__cause__
        found = cause if isinstance(cause, OmegaConfBaseException) else error
        key = str(getattr(found, "full_key", None) or "config")
        first = str(found).strip().partition("\n")[0] or type(found).__name__
        raise Refused(key, first) from error


def quoted(text: str) -> str:
    """A text as a value of Hydra's grammar."""
    return QuotedString(text, Quote.single).with_quotes()


class Composer:
    """Composes the config of one run after another.

    The files of conf/ are read once for each combination of options; values are set in a copy.

    Args:
        config_dirs: the user's folders, which Hydra searches after conf/.
        name: the name of a sweep that was given none.
    """

    def __init__(self, config_dirs: Sequence[Path], name: str) -> None:
        self.config_dirs, self._name = config_dirs, name
        self._base = functools.cache(self._load)

    @refusing_hydra_errors()
    def compose(self, assignments: Sequence[Assignment]) -> dict[str, Any]:
        """A run's config in plain containers, resolved, with the option chosen in each group.

        Raises:
            ConfigError: an option or a key does not exist, or a reference cannot be resolved.
        """
        options = [a.word for a in assignments if a.key in GROUPS]
        base, choices = self._base(tuple(options))
        config = copy.deepcopy(base)
        for assignment in assignments:
            if assignment.key not in GROUPS:
                _assign(config, assignment)
        if config.name is None:
            config.name = self._name
        return plain(config, choices)

    @refusing_hydra_errors()
    def with_hydra(self, words: Sequence[str]) -> DictConfig:
        """The config with Hydra's own part, for these overrides."""
        paths = [quoted(f"file://{folder.resolve()}") for folder in self.config_dirs]
        search = [f"hydra.searchpath=[{','.join(paths)}]"] if paths else []
        return hydra.compose("config", [*search, *words], return_hydra_config=True)

    def _load(self, options: tuple[str, ...]) -> tuple[DictConfig, Mapping[str, str]]:
        config = self.with_hydra(options)
        choices = dict(config.hydra.runtime.choices)
        with open_dict(config):
            del config["hydra"]
        return config, choices


def plain(config: DictConfig, choices: Mapping[str, str]) -> dict[str, Any]:
    """A composed config in plain containers, with the options that Hydra chose.

    Raises:
        ConfigError: a group has no option, or the config has a key ``choices`` of its own.
    """
    if "choices" in config:
        raise unknown("choices", config.choices)
    for group in GROUPS:
        if not isinstance(choices.get(group), str):
            legal = must_be_one_of("", folders.options(group))
            raise ConfigError(group, spelled(choices.get(group)), legal)
    made = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    return {**made, "choices": {group: choices[group] for group in GROUPS}}  # type: ignore[dict-item]


def _assign(config: DictConfig, assignment: Assignment) -> None:
    key, value = assignment.key, assignment.value
    try:
        OmegaConf.update(config, key, value, merge=True, force_add=assignment.adds)
    except (ConfigKeyError, ConfigAttributeError) as error:
        if ".build." in key or key.startswith("claim."):
            legal = f"is not there yet; +{key}={assignment.text} adds it"
            raise ConfigError(key, spelled(value), legal) from error
        unknown_key = str(error.full_key or key)
        values = dotted({key: value})
        raise unknown(unknown_key, spelled(values.get(unknown_key, value))) from error


@contextmanager
def composer(
    experiment: Mapping[str, Any], config_dirs: Sequence[Path], name: str
) -> Iterator[Composer]:
    """Hydra, set up with the defaults of all knobs and the content of an experiment.

    Args:
        experiment: keys with values, and ``defaults``; empty where none was chosen.
        config_dirs: the user's folders.
        name: the name of a sweep that was given none.
    """
    defaults = Config().plain()
    del defaults["choices"]  # Hydra keeps the options that were chosen
    store = ConfigStore.instance()
    store.store(name="knobs", node=defaults)
    store.store(name="experiment", node=dict(experiment))
    conf = str(folders.conf_dir())
    with hydra.initialize_config_dir(conf, job_name="run", version_base="1.3"):
        yield Composer(config_dirs, name)
