"""``python -m stability.work SWEEP``: execute a planned sweep, beside any number of such commands.

Takes the dearest run of the plan that is free, executes it, and goes on until no run is free or the
time is up. A run is free if it is not finished and no living process holds its lock, so the run of
a process that died is taken over. A signal, or the end of the time, ends a run at a step, with a
checkpoint, from which another command continues. Needs no Hydra.
"""

import argparse
import math
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from stability import shell
from stability.config.knobs import ConfigError
from stability.results.atomic import Unreadable
from stability.sweep import devices, lock, plan_file, pool, progress, resume, worker_process
from stability.sweep.grid import Cell
from stability.sweep.summary import FAILED


class FreeRuns:
    """The runs of a plan that this command may take, in the order of the plan.

    Args:
        cells: the plan.
        retry: take runs that failed before, too.
    """

    def __init__(self, cells: Sequence[Cell], retry: bool) -> None:
        self._left = list(cells)
        self._retry = retry

    def take(self) -> Cell | None:
        """The next free run; None where there is none now."""
        for cell in list(self._left):
            if self._is_settled(cell):
                self._left.remove(cell)
            elif not lock.is_held(cell.folder, cell.config.lock_minutes):
                self._left.remove(cell)
                return cell
        return None

    def give_back(self, cell: Cell) -> None:
        """Another command was faster; it may die."""
        self._left.append(cell)

    def _is_settled(self, cell: Cell) -> bool:
        info = resume.read(cell.folder)
        if info is None:
            return False
        if info["status"] == "failed":
            return not self._retry
        return resume.finished(cell.folder, cell.config) is not None


class Lines:
    """An observer that prints a line for each run that ends here."""

    def __init__(self, free: FreeRuns, console: Console) -> None:
        self._free, self._console = free, console

    def started(self, cell: Cell) -> None:
        """Nothing to print."""

    def report(self, cell: Cell, row: dict[str, object]) -> None:
        """Nothing to print."""

    def ended(self, cell: Cell, end: pool.RunEnd) -> None:
        """Print how a run ended; one that another command holds is not this one's."""
        if end.kind == "held":
            self._free.give_back(cell)
        else:
            self._console.print(f"{escape(cell.title)}  {progress.describe(end)}", soft_wrap=True)

    def stopping(self, runs: int) -> None:
        """Say that runs were asked to stop."""
        self._console.print(f"stopping: {runs} to write a checkpoint")


def work(sweep: Path, seconds: float, retry: bool) -> int:
    """Execute free runs of a planned sweep.

    Args:
        sweep: the folder with the plan.
        seconds: after this time the runs are asked to stop.
        retry: take runs that failed before, too.

    Returns:
        The exit code.

    Raises:
        Unreadable, ConfigError: see `plan_file.read`.
    """
    cells, trusted = plan_file.read(sweep)
    console = progress.console()
    gpus = worker_process.check_and_count_gpus(cells[:1], trusted)
    free = FreeRuns(cells, retry)
    settings = devices.worker_settings(cells, trusted, gpus)
    runs = pool.Pool(settings, Lines(free, console), seconds=seconds)
    runs.run_from(free.take)
    if any(end.kind == "failed" for end in runs.ends.values()):
        return FAILED
    if runs.stopped_by is not None:
        return 128 + (runs.stopped_by if runs.stopped_by == signal.SIGINT else signal.SIGTERM)
    return 0


@shell.quiet_exit
def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0; 1 a run failed; 2 refused; 130 or 143 stopped by a signal."""
    parser = shell.command_parser("work", "Execute the runs of a plan until none is free.")
    parser.add_argument("sweep", type=Path, metavar="SWEEP", help="the folder of a planned sweep")
    parser.add_argument(
        "--seconds", type=_seconds, default=math.inf, metavar="N",
        help="then stop the runs at a step; the next command continues them",
    )  # fmt: skip
    parser.add_argument("--retry", action="store_true", help="also execute runs that failed before")
    args = parser.parse_args(argv)
    try:
        return work(args.sweep, args.seconds, args.retry)
    except (Unreadable, ConfigError) as error:
        print(f"stability.work: {error}", file=sys.stderr)
        return 2


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of seconds > 0")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
