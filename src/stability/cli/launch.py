"""From a command line to the end of its sweep."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import yaml
from omegaconf import DictConfig

from stability.cli import compose, hydra_launcher, plan
from stability.cli.flags import Flags
from stability.cli.refusal_text import Refused
from stability.config import instantiate
from stability.config.knobs import ConfigError
from stability.config.rules import validate
from stability.sweep import devices, grid, plan_file, pool, progress, summary, worker_process
from stability.sweep.grid import Cell


def launch(flags: Flags) -> int:
    """Compose, check and run what a command line asks for.

    Returns:
        The exit code.

    Raises:
        ConfigError: something is refused; nothing has been written.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise Refused("the current folder", f"is gone ({error.strerror})") from error
    for folder in flags.config_dirs:
        instantiate.trust(folder)
    request = plan.request(flags)
    name = grid.time_stamp()
    with compose.composer(request.experiment.config, flags.config_dirs, name) as composer:
        if flags.cfg or flags.hydra_help:
            print(_config(request, composer) if flags.cfg else hydra_launcher.help_text(composer))
            return 0
        launcher = hydra_launcher.config_of(request, composer)
        cells = plan.cells(request, composer)
        config = cells[0].config
        named = config.name != name
        if config.shard is not None and not named:
            legal = "needs name=NAME: without it each shard makes a sweep of its own"
            raise ConfigError("shard", config.shard, legal)
        if flags.plan:
            _write_plan(cells, launcher, flags.config_dirs)
            return 0
        return run_cells(cells, launcher, flags.config_dirs, named)


def _write_plan(
    cells: Sequence[Cell], launcher: DictConfig | None, config_dirs: Sequence[Path]
) -> None:
    """Check what is not finished, and write the plan of the whole sweep."""
    if launcher is not None:
        raise Refused("--plan", "has no launcher: start python -m stability.work SWEEP by yours")
    if cells[0].config.shard is not None:
        raise ConfigError("shard", cells[0].config.shard, "has no effect: --plan")
    if waiting := grid.waiting(cells):
        worker_process.check_and_count_gpus(waiting, config_dirs)
    grid.make_folder(cells[0].config)
    path = plan_file.write(cells, config_dirs)
    print(f"{path}: {len(cells)} runs, {len(cells) - len(waiting)} done already")
    print(f"run:    python -m stability.work {shlex.quote(str(path.parent))}")
    print(f"status: python -m stability.status {shlex.quote(str(path.parent))}")


def _config(request: plan.Request, composer: compose.Composer) -> str:
    """The config of one run, without the experiment's grid, as yaml."""
    for setting in request.typed.values():
        if setting.swept:
            raise Refused(setting.word, "--cfg shows one config: one value for each key")
    assignments = [setting.values[0] for setting in request.typed.values()]
    config = validate(composer.compose(assignments))
    return yaml.safe_dump(config.plain(), sort_keys=False).rstrip()


def run_cells(
    cells: Sequence[Cell], launcher: DictConfig | None, config_dirs: Sequence[Path], named: bool
) -> int:
    """Run what is not finished yet, and print how all of it ended.

    Args:
        cells: all runs of the sweep.
        launcher: the config of Hydra's launcher; None for processes on this machine.
        config_dirs: the user's folders.
        named: whether the user chose the sweep's name.

    Returns:
        The exit code.

    Raises:
        ConfigError: an option cannot be built or the folder cannot be made; nothing is written.
    """
    console = progress.console()
    waiting = grid.waiting(cells)
    gpus = worker_process.check_and_count_gpus(waiting, config_dirs) if waiting else 0
    grid.make_folder(cells[0].config)
    summary.announce(cells, waiting, console)
    ends: dict[str, pool.RunEnd] = {}
    stopped_by = None
    if waiting and launcher is not None:
        stopped_by = hydra_launcher.launch(waiting, launcher, ends, console)
    elif waiting:
        settings = devices.worker_settings(waiting, config_dirs, gpus)
        config = waiting[0].config
        with progress.Display(waiting, console) as display:
            isolate = config.isolate or any(grid.needs_process(cell.config) for cell in waiting)
            runs = pool.Pool(settings, display, isolate=isolate, fail_fast=config.fail_fast)
            runs.run(waiting)
        ends = {c.run: runs.ends.get(c.run, pool.RunEnd("waiting")) for c in waiting}
        stopped_by = runs.stopped_by
    return summary.conclude(cells, ends, named, stopped_by, console)
