"""Hydra's side: what it composes from, and what becomes of a composed config.

Imported by the command and by the jobs of foreign launchers; workers of `procs` do without it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from stability.cli.arguments import OPTION
from stability.cli.refusals import one_of
from stability.config import folders, instantiate
from stability.config.identity import digest, identity
from stability.config.knobs import GROUPS, Config, ConfigError, unknown
from stability.config.rules import validate
from stability.parts import data
from stability.sweep import worker
from stability.sweep.lock import Held
from stability.sweep.pool import RunEnd

Experiment = dict[str, Any]

PLUGINS = ("hydra_plugins.", "hydra._internal.core_plugins.")
"""Where launchers live."""


def register(name: str | None, extra: Sequence[Path] = ()) -> None:
    """Give Hydra the schema and the chosen experiment.

    Our folder of experiments is kept off Hydra's search path, which it would walk as a whole; a
    user's own lies in a ``--config-dir``, and so on the path.

    Raises:
        ConfigError: there is no such experiment, or it sets what an experiment must not.
    """
    store = ConfigStore.instance()
    store.store(name="schema", node=_schema())
    if name is not None:
        content = experiment(name, extra)
        if folders.experiments(extra)[name].parent == folders.experiments_dir():
            store.store(name=name, node=content, group="experiments", package="_global_")


def _schema() -> type:
    """Every knob as Hydra's schema: the config without the options, which Hydra itself keeps."""
    knobs = [(f.name, f.type, f) for f in fields(Config) if f.name != "choices"]
    return make_dataclass("Schema", knobs)


def experiment(name: str, extra: Sequence[Path] = ()) -> Experiment:
    """The content of an experiment's yaml.

    Raises:
        ConfigError: there is no such file, it is damaged, or it sets more of Hydra than its grid.
    """
    known = folders.experiments(extra)
    if name not in known:
        raise ConfigError("experiments", name, one_of(name, sorted(known)))
    try:
        content = yaml.safe_load(known[name].read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError("experiments", name, f"cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError("experiments", name, "must hold keys and values")
    _refuse_hydra(name, content)
    return content


def _refuse_hydra(name: str, content: Experiment) -> None:
    """An experiment is a grid and a config; how it runs is for the command line to say."""
    hydra = content.get("hydra") or {}
    grid = hydra.get("sweeper") if isinstance(hydra, dict) else None
    groups = [str(next(iter(d), "")) for d in content.get("defaults") or [] if isinstance(d, dict)]
    only_grid = isinstance(grid, dict) and set(hydra) == {"sweeper"} and set(grid) <= {"params"}
    if (hydra and not only_grid) or any("hydra/" in group for group in groups):
        legal = "may set hydra.sweeper.params only; launcher and mode belong on the command line"
        raise ConfigError("experiments", name, legal)


def given(content: Experiment) -> dict[str, Any]:
    """Keys that an experiment sets, dotted, with their values."""
    found: dict[str, Any] = {}

    def walk(node: Mapping[str, Any], prefix: str) -> None:
        for key, value in node.items():
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")
            else:
                found[f"{prefix}{key}"] = value

    walk({k: v for k, v in content.items() if k not in ("hydra", "defaults", "claim")}, "")
    return found


def trusted(hydra: Any) -> list[Path]:
    """Folders that the user gave by ``--config-dir``."""
    sources = hydra.runtime.config_sources
    return [Path(s.path) for s in sources if s.provider == "command-line"]


def refuse_foreign(launcher: DictConfig) -> None:
    """Refuse what Hydra would call while it makes the launcher, other than a launcher.

    Raises:
        ConfigError: a `_target_` is no plugin, or lies deeper, perhaps by way of an interpolation.
    """
    for key, target in _targets(OmegaConf.to_container(launcher, resolve=True), "hydra.launcher"):
        if key != "hydra.launcher._target_" or not str(target).startswith(PLUGINS):
            raise ConfigError(key, target, "hydra/launcher=NAME alone says what is built")


def _targets(node: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Every `_target_` in a node, under its dotted name."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "_target_":
                yield f"{key}.{name}", value
            yield from _targets(value, f"{key}.{name}")


def plain(cfg: DictConfig, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """A composed config as plain containers, resolved, with the option chosen in each group."""
    config: dict[str, Any] = {}
    for key in (str(k) for k in cfg if k != "hydra"):
        value = cfg[key]
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
        config[key] = value
    if "choices" in config:
        raise unknown("choices", config["choices"])
    config["choices"] = {group: chosen.get(group) for group in GROUPS}
    for group, option in config["choices"].items():
        if not isinstance(option, str) or not OPTION.fullmatch(option):
            raise ConfigError(group, option, f"must be one of {', '.join(folders.options(group))}")
    return config


def task(cfg: DictConfig) -> RunEnd:
    """One run under a launcher of Hydra's own kind: it composes again, in its own process.

    Raises:
        ConfigError: what was composed is not what the sweeper had checked and named.
    """
    hydra = HydraConfig.get()
    for folder in trusted(hydra):
        instantiate.trust(folder)
    config = validate(plain(cfg, hydra.runtime.choices))
    instantiate.allow(*config.allow)
    folder = Path(hydra.runtime.output_dir)
    run = digest(identity(config, data.source(config).sha256))
    if not folder.name.endswith(run):
        raise ConfigError("name", config.name, "conf/ or the data changed during the sweep")
    try:
        info = worker.run(config, folder, lambda row: None, worker.WorkerSettings().execute)
    except Held as held:
        return RunEnd("held", cause=str(held))
    return RunEnd("done", info)
