"""The sweep behind the Hydra sweeper ``grid``: from a command line to cells, and to their ends.

What it finds out is handed on as overrides (``name``, ``hydra.sweep.subdir``), so that any launcher
can run it; a launcher with an ``accept`` method gets the composed configs themselves.
"""

import copy
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from stability.cli import checks, compose
from stability.cli.arguments import check
from stability.config.knobs import KNOBS, ConfigError
from stability.results.run_file import one_line
from stability.sweep import grid, progress, resume, summary, worker_process
from stability.sweep.grid import Cell
from stability.sweep.pool import RunEnd

BESIDE = {"experiments", *(k for k in KNOBS if not KNOBS[k].identity and k != "train.steps")}
"""Keys that leave an experiment's runs as it wrote them."""

MOST = 10_000
"""Runs that a sweep may have: a typing error must not compose for days."""


def name_of(config: DictConfig) -> str:
    """The sweep's name: what the user or the experiment says, else a time stamp.

    Raises:
        ConfigError: it could leave the output folder, or is none.
    """
    if config.name is None:
        return grid.time_stamp()
    legal = KNOBS["name"].legal
    if not legal.test(config.name):
        raise ConfigError("name", config.name, f"must be {legal.text}")
    return str(config.name)


class Plan:
    """Composes, checks and names all runs of a command; writes nothing.

    Args:
        loader: composes.
        config: composed without the grid, with the sweep's name.
        params: the experiment's grid.
    """

    def __init__(self, loader: ConfigLoader, config: DictConfig, params: Mapping[str, Any]) -> None:
        self._loader, self._config, self._params = loader, config, params
        self._console = progress.console()
        self._parser = OverridesParser.create(config_loader=loader)
        self._parse = functools.cache(self._parser.parse_override)
        self._base = functools.cache(self._load)

    def cells(self, arguments: Sequence[str]) -> list[Cell]:
        """The runs that the overrides on the command line ask for.

        Raises:
            ConfigError: for the first thing that is refused.
        """
        overrides = self._overrides(arguments)
        swept = {k: o.get_value_string() for k, o in overrides.items() if o.is_sweep_override()}
        checks.refuse_sweep(swept)
        lines = _product(overrides)
        composed = [self._compose(x) for x in progress.track(lines, "composing", self._console)]
        given = self._given(arguments, overrides)
        self._refuse_unheeded(given)
        configs, hashes = checks.check(composed, given)
        return grid.place(grid.cells(configs, lines, hashes, list(swept)))

    def _overrides(self, arguments: Sequence[str]) -> dict[str, Override]:
        """By key: what the command line says replaces what the experiment says."""
        params = [f"{key}={_joined(value)}" for key, value in self._params.items()]
        parsed = self._parser.parse_overrides([*params, *arguments])
        for override in parsed[: len(params)]:
            check(override, compose.trusted(self._config.hydra))
        return {o.get_key_element().lstrip("+~"): o for o in parsed}

    def _compose(self, line: Sequence[str]) -> dict[str, Any]:
        """One cell. What chooses options is composed once; values are then set in a copy."""
        parsed = [(text, self._parse(text)) for text in line]
        options = tuple(text for text, o in parsed if not _sets_value(o))
        cfg = copy.deepcopy(self._base(options))
        ConfigLoaderImpl._apply_overrides_to_config([o for _, o in parsed if _sets_value(o)], cfg)
        cfg.name = self._config.name
        HydraConfig.instance().set_config(cfg)
        return compose.plain(cfg, cfg.hydra.runtime.choices)

    def _load(self, options: tuple[str, ...]) -> DictConfig:
        return self._loader.load_sweep_config(self._config, list(options))

    def _given(self, arguments: Sequence[str], overrides: Mapping[str, Override]) -> dict[str, Any]:
        """Keys that the user set, on the command line or in the experiment, with their values.

        Of an experiment that the command line changes its grid alone counts: what else it says was
        said for other runs (`experiments=vanishing train.steps=0` leaves its record.every idle).
        """
        hydra = self._config.hydra
        name = hydra.runtime.choices.experiments
        as_written = {self._parse(word).key_or_group for word in arguments} <= BESIDE
        content = compose.experiment(name, compose.trusted(hydra)) if name and as_written else {}
        typed = {k: o.value() for k, o in overrides.items() if not o.is_sweep_override()}
        typed |= {k: o.get_value_string() for k, o in overrides.items() if o.is_sweep_override()}
        return compose.given(content) | compose.given(typed)

    def _refuse_unheeded(self, given: Mapping[str, Any]) -> None:
        """Keys that only the launcher `procs` heeds."""
        launcher = self._config.hydra.runtime.choices["hydra/launcher"]
        for key in ("n_jobs", "isolate", "fail_fast"):
            if launcher != "procs" and key in given:
                raise ConfigError(key, given[key], f"has no effect: hydra/launcher={launcher}")


def _sets_value(override: Override) -> bool:
    """Whether an override sets a key's value; else it chooses an option."""
    return override.key_or_group in KNOBS or "." in override.key_or_group


def _joined(value: Any) -> Any:
    return ",".join(map(str, value)) if OmegaConf.is_list(value) else value


def _product(overrides: Mapping[str, Override]) -> list[tuple[str, ...]]:
    """All combinations, the first key varying slowest."""
    columns = [_values(key, override) for key, override in overrides.items()]
    number = math.prod(map(len, columns))
    if number > MOST:
        raise ConfigError("grid", f"{number} runs", f"a sweep has at most {MOST}")
    return list(itertools.product(*columns))


def _values(key: str, override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [str(override.input_line)]
    text = override.get_value_string()
    if not override.is_discrete_sweep():
        raise ConfigError(key, text, "a grid takes values and ranges")
    try:
        values = list(itertools.islice(override.sweep_string_iterator(), MOST + 1))
    except (ValueError, HydraException) as error:  # a range of step 0
        raise ConfigError(key, text, f"gives no values ({error})") from error
    if not values:
        raise ConfigError(key, text, "gives no values")
    return [f"{override.get_key_element()}={value}" for value in values]


def run(cells: Sequence[Cell], launcher: Any, trusted: Sequence[Path], named: bool) -> None:
    """Run what is not finished yet, and say how all of it ended.

    Args:
        cells: all runs of the sweep.
        launcher: Hydra's, or one that takes cells.
        trusted: the folders of ``--config-dir``.
        named: whether the user chose the sweep's name.

    Raises:
        ConfigError: an option cannot be built or the folder cannot be made; nothing is written.
        Finished: the command's exit code is not 0.
    """
    console = progress.console()
    waiting = grid.waiting(cells)
    gpus = worker_process.examine(waiting, trusted) if waiting else 0
    grid.make_folder(cells[0].config)
    summary.announce(cells, waiting, console)
    outcomes = _launch(waiting, launcher, gpus, console) if waiting else {}
    signal = getattr(launcher, "signal", None)
    summary.conclude(cells, outcomes, named, signal, console)


def _launch(cells: Sequence[Cell], launcher: Any, gpus: int, console: Console) -> dict[str, RunEnd]:
    jobs = [
        [*c.overrides, f"name='{c.config.name}'", f"hydra.sweep.subdir='{c.folder.name}'"]
        for c in cells
    ]
    if hasattr(launcher, "accept"):
        with progress.Display(cells, console) as display:
            launcher.accept(cells, gpus, display)
            results = launcher.launch(jobs, 0)
    else:
        try:
            results = launcher.launch(jobs, 0)
        except Exception as error:  # some launchers lose everything with one killed job
            results = [JobReturn(status=JobStatus.FAILED, _return_value=error) for _ in cells]
    return {cell.run: _outcome(cell, r) for cell, r in zip(cells, results, strict=True)}


def _outcome(cell: Cell, result: JobReturn) -> RunEnd:
    """How a job ended; what it wrote itself counts for more than what its launcher says."""
    if result.status == JobStatus.COMPLETED and isinstance(result.return_value, RunEnd):
        return result.return_value
    cause = one_line(result._return_value)
    resume.mark_ended(cell.folder, "failed", cause, cell.config.lock_minutes)
    if (info := resume.finished(cell.folder, cell.config)) is not None:
        return RunEnd("done", info)
    return RunEnd("failed", resume.read(cell.folder), cause)
