"""One worker process: started, talked to through a pipe, stopped, and its death explained."""

import multiprocessing
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from stability.config.knobs import ConfigError
from stability.sweep import worker
from stability.sweep.grid import Cell
from stability.sweep.lock import LOST

PRELOADED = ["torch", "stability.training.job", "stability.sweep.worker"]

NO_PROCESS = (OSError, EOFError, RuntimeError)
"""What a machine without memory, threads or files raises where a process is to be started."""


def context() -> Any:
    """A forkserver with torch loaded, so that a worker starts in milliseconds; else spawn."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(PRELOADED)
    return chosen


def examine(cells: Sequence[Cell], trusted: Sequence[Path]) -> int:
    """Check in another process what needs torch, which this one then never loads.

    Returns:
        The number of GPUs.

    Raises:
        ConfigError: an option cannot be built, there is no such device, or no process to look.
    """
    near, far = context().Pipe()
    setup = worker.Setup(tuple(trusted))
    configs = [cell.config for cell in cells]
    process = context().Process(target=worker.examine, args=(far, setup, configs))
    try:
        with far:
            process.start()
    except NO_PROCESS as error:
        legal = f"no process can be started ({worker.cause(error)})"
        raise ConfigError("n_jobs", configs[0].n_jobs, legal) from error
    try:
        gpus, refusal = near.recv()
    except EOFError:
        process.join()
        gpus, refusal = 0, ("model", configs[0].choices["model"], last_words(process.exitcode))
    process.join()
    if refusal is not None:
        raise ConfigError(*refusal)
    return int(gpus)


class Seat:
    """A place for one worker process at a time."""

    def __init__(self, setup: worker.Setup) -> None:
        self.cell: Cell | None = None
        self.pipe: Connection | None = None
        self._setup = setup
        self._process: BaseProcess | None = None

    def begin(self, cell: Cell) -> None:
        """Give the worker a run; a new worker where there is none or it has died.

        Raises:
            OSError, EOFError, RuntimeError: twice in a row no worker could be started.
        """
        try:
            self._send(cell)
        except NO_PROCESS:  # it died while it was idle, or the machine is short of something
            self.dismiss()
            self._send(cell)
        self.cell = cell

    def _send(self, cell: Cell) -> None:
        if self.pipe is None:
            near, far = context().Pipe()
            process = context().Process(target=worker.serve, args=(far, self._setup))
            with far:
                process.start()
            self.pipe, self._process = near, process
        self.pipe.send((cell.config, cell.folder))

    def hear(self) -> tuple[str, Any]:
        """The worker's next word; when its end of the pipe is closed, how it died."""
        assert self.pipe is not None
        try:
            word, value = self.pipe.recv()
        except (EOFError, OSError):
            return "failed", last_words(self.dismiss())
        return word, value

    def terminate(self) -> None:
        """Ask the run to stop: it writes a checkpoint first."""
        if self._process is not None:
            self._process.terminate()

    def dismiss(self, wait: float = 10.0) -> int | None:
        """End the worker, by force if it does not go within `wait` seconds; its exit code."""
        if self.pipe is None or self._process is None:
            return None
        self.pipe.close()
        self._process.join(wait)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        code = self._process.exitcode
        self.pipe = self._process = None
        return code


def last_words(code: int | None) -> str:
    """What an exit code tells of a process that said nothing."""
    if code == LOST:
        return "another command took over its claim"
    if code is None or code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    memory = "; was the machine out of memory?" if -code == signal.SIGKILL else ""
    return f"its process was killed ({name}{memory})"
