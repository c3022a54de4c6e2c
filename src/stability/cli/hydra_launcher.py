"""Runs under a launcher of Hydra (submitit, joblib, ray, basic): each job composes its run."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from stability.cli.compose import Composer, plain, quoted, refusing_hydra_errors
from stability.cli.overrides import LAUNCHER
from stability.cli.plan import Request
from stability.config import folders, instantiate
from stability.config.identity import digest, dotted, identity
from stability.config.knobs import ConfigError
from stability.config.ranges import spelled
from stability.config.rules import validate
from stability.config.suggestions import must_be_one_of
from stability.parts import data
from stability.results.run_file import one_line
from stability.sweep import lock, resume, worker
from stability.sweep.grid import Cell
from stability.sweep.lock import LockHeld
from stability.sweep.pool import RunEnd, end_of

POLL_INTERVAL = 1.0
"""Seconds between checks whether runs go on."""

PROCS = "procs"
"""Worker processes on this machine: no launcher of Hydra."""


def config_of(request: Request, composer: Composer) -> DictConfig | None:
    """The config of the launcher that a command line chooses, composed by Hydra; None for `PROCS`.

    Raises:
        ConfigError: there is no such launcher, or a key has no effect with this one.
    """
    chosen = request.launcher.get(LAUNCHER)
    name = spelled(chosen.given) if chosen else PROCS
    keys = {k: s.given for k, s in request.launcher.items() if k != LAUNCHER}
    if name != PROCS:
        keys = {k: v for k, v in request.given().items() if k in ("n_jobs", "isolate", "fail_fast")}
    for key, value in keys.items():
        raise ConfigError(key, spelled(value), f"has no effect: {LAUNCHER}={name}")
    if name == PROCS:
        return None
    if name not in (known := names(composer)):
        raise ConfigError(LAUNCHER, name, must_be_one_of(name, known))
    config = composer.with_hydra([setting.word for setting in request.launcher.values()])
    _refuse_targets(config.hydra.launcher)
    return config


def names(composer: Composer) -> list[str]:
    """Every launcher that can be chosen."""
    of_hydra = GlobalHydra.instance().config_loader().get_group_options(LAUNCHER)
    return sorted({PROCS, *of_hydra, *folders.options(LAUNCHER, composer.config_dirs)})


def help_text(composer: Composer) -> str:
    """Every launcher of Hydra, with its keys and their defaults."""
    texts = [f"{LAUNCHER}=NAME, where NAME is one of {', '.join(names(composer))}"]
    for name in names(composer):
        if name != PROCS:
            keys = composer.with_hydra([f"{LAUNCHER}={name}"]).hydra.launcher
            yaml = OmegaConf.to_yaml(keys).rstrip()
            texts.append(f"hydra.launcher.KEY=VALUE with {LAUNCHER}={name}:\n{yaml}")
    return "\n\n".join(texts)


@refusing_hydra_errors()
def _refuse_targets(launcher: DictConfig) -> None:
    """Refuse what Hydra would call while it makes the launcher, other than a launcher.

    Raises:
        ConfigError: a `_target_` is no plugin, or lies deeper, perhaps by way of a reference.
    """
    classes = Plugins.instance().discover(Launcher)
    plugins = {f"{cls.__module__}.{cls.__name__}" for cls in classes}
    content = {"hydra.launcher": OmegaConf.to_container(launcher, resolve=True)}
    for key, value in dotted(content).items():
        named = key == "hydra.launcher._target_" and value in plugins
        if not named and "_target_" in f"{key}={value}":
            raise ConfigError(key, value, f"{LAUNCHER}=NAME alone says what is built")


class Stopped(BaseException):
    """A signal asked the command to stop. No Exception, so that no launcher takes it for a job's.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


def launch(
    cells: Sequence[Cell], config: DictConfig, ends: dict[str, RunEnd], console: Console
) -> int | None:
    """Let a launcher execute the runs.

    Args:
        cells: the runs.
        config: of the launcher.
        ends: filled with how each run ended, by its hash.
        console: where to print.

    Returns:
        The signal that stopped it, or None.
    """
    sweep = cells[0].config
    config.out, config.name = sweep.out, sweep.name
    HydraConfig.instance().set_config(config)
    loader = GlobalHydra.instance().config_loader()
    no_callbacks: Any = Callback()  # keys of callbacks are refused
    launcher = Plugins.instance().instantiate_launcher(
        HydraContext(loader, no_callbacks), execute, config
    )
    jobs = [
        [*c.overrides, f"++name={quoted(str(sweep.name))}", f"hydra.sweep.subdir='{c.folder.name}'"]
        for c in cells
    ]
    try:
        with _raising_stop_signals():
            try:
                results = launcher.launch(jobs, 0)
            except Exception as error:  # one job was killed: others may go on
                ends |= ends_without_launcher(cells, error, console)
            else:
                ends |= {c.run: _end(c, r) for c, r in zip(cells, results, strict=True)}
    except Stopped as stopped:
        ends |= {cell.run: _end_on_disk(cell) for cell in cells}
        return stopped.number
    return None


@contextmanager
def _raising_stop_signals() -> Iterator[None]:
    """Raise `Stopped` at a signal; a run in this process handles it first, until its checkpoint."""

    def stop(number: int, _: object) -> None:
        raise Stopped(number)

    handlers = {n: signal.signal(n, stop) for n in (signal.SIGHUP, *worker.RUN_STOP_SIGNALS)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def ends_without_launcher(
    cells: Sequence[Cell], error: Exception, console: Console
) -> dict[str, RunEnd]:
    """How each run ended after the launcher itself did, which may be at the death of one job.

    Waits for the runs that go on. Runs that were not started did not fail, unless none was.
    """
    cause = one_line(error)
    for cell in cells:
        resume.mark_ended(cell.folder, "failed", cause, cell.config.lock_minutes)
    if going := [cell for cell in cells if _is_running(cell)]:
        console.print(f"the launcher ended ({cause}); {len(going)} runs go on", markup=False)
    while going:
        time.sleep(POLL_INTERVAL)
        going = [cell for cell in cells if _is_running(cell)]
    for cell in cells:
        resume.mark_ended(cell.folder, "failed", cause, cell.config.lock_minutes)
    ends = {cell.run: _end_on_disk(cell) for cell in cells}
    if all(end.kind == "waiting" for end in ends.values()):
        return {cell.run: RunEnd("failed", cause=cause) for cell in cells}
    return ends


def _is_running(cell: Cell) -> bool:
    return lock.is_held(cell.folder, cell.config.lock_minutes)


def _end_on_disk(cell: Cell) -> RunEnd:
    """How a run ended, by its run.json."""
    info = resume.read(cell.folder)
    if info is None or info["status"] == "running":
        return RunEnd("waiting", info)
    return end_of(info)


def _end(cell: Cell, result: JobReturn) -> RunEnd:
    """How a job ended; what it wrote itself counts for more than what its launcher says."""
    if result.status == JobStatus.COMPLETED and isinstance(result.return_value, RunEnd):
        return result.return_value
    cause = one_line(result._return_value)
    resume.mark_ended(cell.folder, "failed", cause, cell.config.lock_minutes)
    if (info := resume.finished(cell.folder, cell.config)) is not None:
        return RunEnd("done", info)
    return RunEnd("failed", resume.read(cell.folder), cause)


def execute(composed: DictConfig) -> RunEnd:
    """One job, in whatever process the launcher starts it.

    Args:
        composed: the run's config, which Hydra has composed again there.

    Raises:
        ConfigError: it is not the config that was checked and named before.
    """
    hydra = HydraConfig.get()
    for path in hydra.searchpath:
        instantiate.trust(path.removeprefix("file://"))
    config = validate(plain(composed, hydra.runtime.choices))
    instantiate.allow(*config.allow)
    folder = Path(hydra.runtime.output_dir)
    run = digest(identity(config, data.source(config).sha256))
    if not folder.name.endswith(run):
        raise ConfigError("name", config.name, "conf/ or the data changed during the sweep")
    try:
        info = worker.run(config, folder, lambda row: None, worker.WorkerSettings().execute)
    except LockHeld as held:
        return RunEnd("held", cause=str(held))
    return end_of(info)
