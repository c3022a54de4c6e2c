"""Runs in worker processes: one event loop in the parent, one pipe to each worker.

A worker that fails or dies is replaced, and costs its own run only. (Pebble's ProcessPool survives
killed workers too, but its workers share one channel: it could not give each a GPU of its own, pass
on the numbers of a step, or ask one run to stop and wait for its checkpoint, and that is most of
what this file does.)
"""

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Literal, Protocol

from stability.results.run_file import one_line
from stability.sweep import resume, worker
from stability.sweep.grid import Cell
from stability.sweep.worker import WorkerSettings
from stability.sweep.worker_process import START_ERRORS, WorkerProcess

POLL_INTERVAL = 0.5
"""Seconds between checks whether a signal was received."""

SWEEP_STOP_SIGNALS = (signal.SIGINT, signal.SIGHUP, *worker.RUN_STOP_SIGNALS)
"""Signals that ask a sweep to stop."""


Kind = Literal["done", "failed", "interrupted", "held", "waiting"]


@dataclass(frozen=True)
class RunEnd:
    """How a run ended, as its parent sees it."""

    kind: Kind
    """held: another process has its lock. waiting: it was never started."""
    info: dict[str, Any] | None = None
    """The content of run.json."""
    cause: str = ""


class Observer(Protocol):
    """Is told how the runs get on."""

    def started(self, cell: Cell) -> None: ...
    def report(self, cell: Cell, row: dict[str, Any]) -> None: ...
    def ended(self, cell: Cell, end: RunEnd) -> None: ...
    def stopping(self, runs: int) -> None: ...


class Pool:
    """Executes cells in worker processes.

    Args:
        settings: one for each worker that may exist at a time.
        observer: is told of starts, steps and ends, and of runs that are asked to stop.
        isolate: use a new process for each run.
        fail_fast: stop everything at the first failure.
        seconds: stop everything after this time.
    """

    def __init__(
        self,
        settings: Sequence[WorkerSettings],
        observer: Observer,
        *,
        isolate: bool = False,
        fail_fast: bool = False,
        seconds: float = math.inf,
    ) -> None:
        self._workers = [WorkerProcess(each) for each in settings]
        self._observer = observer
        self._isolate, self._fail_fast = isolate, fail_fast
        self._deadline = time.monotonic() + seconds
        self._stopping = False
        self._signals: list[int] = []
        self._ended = 0
        self._exhausted_at: int | None = None
        """Runs that had ended when there was no further one."""
        self.ends: dict[str, RunEnd] = {}
        """By the cell's hash; a cell that was never started has none."""

    @property
    def stopped_by(self) -> int | None:
        """The signal that stopped the sweep: the first one."""
        return self._signals[0] if self._signals else None

    def run(self, cells: Sequence[Cell]) -> None:
        """Execute all cells; ends early on a signal, or on a failure with `fail_fast`."""
        queue = deque(cells)
        self.run_from(lambda: queue.popleft() if queue else None)

    def run_from(self, take: Callable[[], Cell | None]) -> None:
        """Execute what `take` gives, until it gives None and no run goes on, or all must stop."""
        with self._catching_signals():
            try:
                while not self._must_stop() and (self._fill(take) or self._busy()):
                    self._receive()
            finally:
                self._stop()

    def _fill(self, take: Callable[[], Cell | None]) -> bool:
        """Give each idle worker a run; whether one got a run. Asks again only after an end."""
        if self._exhausted_at == self._ended:
            return False
        filled = False
        for process in self._workers:
            if process.cell is None:
                if (cell := take()) is None:
                    self._exhausted_at = self._ended
                    break
                self._start(process, cell)
                filled = True
        return filled

    def _start(self, process: WorkerProcess, cell: Cell) -> None:
        """Start a run; if its worker cannot be started, this run alone fails."""
        try:
            process.submit(cell)
        except START_ERRORS as error:
            cause = f"no worker could be started ({one_line(error)})"
            self._record(cell, RunEnd("failed", cause=cause))
        else:
            self._observer.started(cell)

    @contextmanager
    def _catching_signals(self) -> Iterator[None]:
        handlers = {
            n: signal.signal(n, lambda n, _: self._signals.append(n)) for n in SWEEP_STOP_SIGNALS
        }
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _must_stop(self) -> bool:
        failed = any(end.kind == "failed" for end in self.ends.values())
        late = time.monotonic() > self._deadline
        return late or bool(self._signals) or (self._fail_fast and failed)

    def _busy(self) -> list[WorkerProcess]:
        return [process for process in self._workers if process.cell is not None]

    def _receive(self) -> None:
        """Handle the messages of all workers; waits for `POLL_INTERVAL` at most."""
        by_pipe = {process.pipe: process for process in self._busy() if process.pipe is not None}
        for pipe in wait(list(by_pipe), timeout=POLL_INTERVAL):
            process = by_pipe[pipe]  # type: ignore[index]
            assert process.cell is not None
            word, value = process.receive()
            if word == "started":
                continue
            if word == "report":
                self._observer.report(process.cell, value)
            else:
                self._end(process, word, value)

    def _end(self, process: WorkerProcess, word: str, value: Any) -> None:
        cell, process.cell = process.cell, None
        assert cell is not None
        if word == "done":
            end = end_of(value)
        elif word == "held":
            end = RunEnd("held", cause=value)
        else:
            process.close()
            end = self._died(cell, value)
        if self._isolate:
            process.close()
        self._record(cell, end)

    def _died(self, cell: Cell, cause: str) -> RunEnd:
        """The end of a run whose process failed or died; it may not have written run.json."""
        kind: Kind = "interrupted" if self._stopping else "failed"
        resume.mark_ended(cell.folder, kind, cause, cell.config.lock_minutes)
        return RunEnd(kind, resume.read(cell.folder), cause)

    def _record(self, cell: Cell, end: RunEnd) -> None:
        self.ends[cell.run] = end
        self._ended += 1
        self._observer.ended(cell, end)

    def _stop(self) -> None:
        """Ask running runs to stop, wait for their checkpoints, and end all workers.

        One more signal ends the wait.
        """
        self._stopping = True
        if busy := self._busy():
            self._observer.stopping(len(busy))
        for process in busy:
            process.terminate()
        deadline = time.monotonic() + worker.GRACE_PERIOD
        received = len(self._signals)
        while self._busy() and time.monotonic() < deadline and len(self._signals) == received:
            self._receive()
        for process in self._busy():
            process.close(timeout=0)
            self._end(process, "failed", "it did not stop in time")
        for process in self._workers:
            process.close()


def end_of(info: dict[str, Any]) -> RunEnd:
    """The end of a run that wrote its run.json itself."""
    if info["status"] == "interrupted":
        return RunEnd("interrupted", info, info["error"] or "")
    return RunEnd("failed" if info["status"] == "failed" else "done", info, info["error"] or "")
