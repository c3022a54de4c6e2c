"""One worker process: how it is started, given runs, read from, stopped; and why it ended."""

import multiprocessing
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from stability.config.knobs import ConfigError
from stability.results.run_file import one_line
from stability.sweep import worker
from stability.sweep.grid import Cell
from stability.sweep.lock import LOST

PRELOADED = ["torch", "stability.training.job", "stability.sweep.worker"]

START_ERRORS = (OSError, EOFError, RuntimeError)
"""What starting a process raises on a machine that lacks memory, threads or file handles."""


def process_context() -> Any:
    """A forkserver with torch loaded, so that a worker starts in milliseconds; else spawn."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def check_and_count_gpus(cells: Sequence[Cell], trusted: Sequence[Path]) -> int:
    """Check in another process what needs torch, so that this one never loads it.

    Returns:
        The number of GPUs.

    Raises:
        ConfigError: an option cannot be built, there is no such device, or the process cannot be
            started.
    """
    configs = [cell.config for cell in cells]
    settings = worker.WorkerSettings(tuple(trusted))
    try:
        process, pipe = _start(worker.check_and_send, settings, configs)
    except START_ERRORS as error:
        legal = f"no process can be started ({one_line(error)})"
        raise ConfigError("n_jobs", configs[0].n_jobs, legal) from error
    try:
        gpus, refusal = pipe.recv()
    except EOFError:
        process.join()
        model = configs[0].choices["model"]
        gpus, refusal = 0, ("model", model, describe_exit(process.exitcode))
    process.join()
    if refusal is not None:
        raise ConfigError(*refusal)
    return int(gpus)


def _start(main: Any, *args: Any) -> tuple[BaseProcess, Connection]:
    """A new process that runs ``main(pipe, *args)``, and this end of the pipe."""
    context = process_context()
    parent_end, child_end = context.Pipe()
    process = context.Process(target=main, args=(child_end, *args))
    with child_end:
        process.start()
    return process, parent_end


class WorkerProcess:
    """A worker process that is started when it gets a run, and again after it has ended."""

    def __init__(self, settings: worker.WorkerSettings) -> None:
        self.cell: Cell | None = None
        """The run that it executes."""
        self.pipe: Connection | None = None
        self._settings = settings
        self._unstarted: Cell | None = None
        """A run that was sent and that the process has not begun."""
        self._process: BaseProcess | None = None

    def submit(self, cell: Cell) -> None:
        """Give it a run.

        Raises:
            OSError, EOFError, RuntimeError: twice in a row the process could not be started.
        """
        try:
            self._send(cell)
        except START_ERRORS:  # it ended while it was idle, or the machine lacks something
            self.close()
            self._send(cell)
        self.cell = self._unstarted = cell

    def _send(self, cell: Cell) -> None:
        if self.pipe is None:
            self._process, self.pipe = _start(worker.serve, self._settings)
        self.pipe.send((cell.config, cell.folder))

    def receive(self) -> tuple[str, Any]:
        """Its next message; after it has ended without one, ``failed`` and how it ended.

        A process that was killed while it was idle may still take a run into its pipe. A run that
        its process never began is sent once more, to a new process.
        """
        assert self.pipe is not None
        unstarted, self._unstarted = self._unstarted, None
        try:
            word, value = self.pipe.recv()
        except (EOFError, OSError):
            how = describe_exit(self.close())
            if unstarted is None:
                return "failed", how
            try:
                self._send(unstarted)
            except START_ERRORS as error:
                return "failed", f"{how}; no other could be started ({one_line(error)})"
            return "started", None
        return word, value

    def terminate(self) -> None:
        """Ask the run to stop: it writes a checkpoint first."""
        if self._process is not None:
            self._process.terminate()

    def close(self, timeout: float = 10.0) -> int | None:
        """End the process, by force after `timeout` seconds; returns its exit code."""
        if self.pipe is None or self._process is None:
            return None
        self.pipe.close()
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        code = self._process.exitcode
        self.pipe = self._process = None
        return code


def describe_exit(code: int | None) -> str:
    """The exit code of a process that sent no last message, in words."""
    if code == LOST:
        return "another command took over its lock"
    if code is None or code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    memory = "; was the machine out of memory?" if -code == signal.SIGKILL else ""
    return f"its process was killed ({name}{memory})"
