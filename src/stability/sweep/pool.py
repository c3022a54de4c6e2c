"""Runs in worker processes: one event loop in the parent, one pipe to each worker.

A worker that fails or dies is replaced, and costs its own run only. (Pebble's ProcessPool survives
killed workers too, but its workers share one channel: it could not give each a GPU of its own, pass
on the numbers of a step, or ask one to stop politely, and that is most of what this file does.)
"""

import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from stability.config.knobs import Config
from stability.sweep import resume, worker
from stability.sweep.grid import Cell
from stability.sweep.worker_process import NO_PROCESS, Seat

PATIENCE = 0.5
"""Seconds between looks at whether a signal has come."""

STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]


@dataclass(frozen=True)
class Outcome:
    """How a run ended, as its parent sees it."""

    kind: str
    """done, failed, interrupted, held (claimed elsewhere) or waiting (never started)."""
    info: dict[str, Any] | None = None
    """The content of run.json."""
    cause: str = ""


class Watcher(Protocol):
    """What wants to know how the runs get on."""

    def started(self, cell: Cell) -> None: ...
    def report(self, cell: Cell, row: dict[str, Any]) -> None: ...
    def ended(self, cell: Cell, outcome: Outcome) -> None: ...
    def stopping(self, runs: int) -> None: ...


class Pool:
    """Executes cells on seats.

    Args:
        setups: one for each worker that may live at a time.
        watcher: is told of starts, steps and ends, and of runs that are asked to stop.
        config: says ``isolate`` (a new process for each run) and ``fail_fast`` (stop everything at
            the first failure).
    """

    def __init__(self, setups: Sequence[worker.Setup], watcher: Watcher, config: Config) -> None:
        self._seats = [Seat(setup) for setup in setups]
        self._watcher = watcher
        self._isolate, self._fail_fast = config.isolate, config.fail_fast
        self._stopping = False
        self.signals: list[int] = []
        """Signals that asked the sweep to stop."""
        self.outcomes: dict[str, Outcome] = {}
        """Ends, by the cell's hash; a cell that was never started has none."""

    def run(self, cells: Sequence[Cell]) -> None:
        """Execute all cells; ends early on a signal, or on a failure under `fail_fast`."""
        queue = deque(cells)
        with self._heeding_signals():
            try:
                while (queue or self._busy()) and not self._must_stop():
                    for seat in self._seats:
                        if queue and seat.cell is None:
                            self._begin(seat, queue.popleft())
                    self._listen()
            finally:
                self._stop()

    def _begin(self, seat: Seat, cell: Cell) -> None:
        """Start a run; where no worker can be had for it, that costs this run only."""
        try:
            seat.begin(cell)
        except NO_PROCESS as error:
            cause = f"no worker could be started ({worker.cause(error)})"
            self._conclude(cell, Outcome("failed", cause=cause))
        else:
            self._watcher.started(cell)

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        before = {n: signal.signal(n, lambda n, _: self.signals.append(n)) for n in STOPS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _must_stop(self) -> bool:
        failed = any(outcome.kind == "failed" for outcome in self.outcomes.values())
        return bool(self.signals) or (self._fail_fast and failed)

    def _busy(self) -> list[Seat]:
        return [seat for seat in self._seats if seat.cell is not None]

    def _listen(self) -> None:
        seats = {seat.pipe: seat for seat in self._busy() if seat.pipe is not None}
        for pipe in wait(list(seats), timeout=PATIENCE):
            seat = seats[pipe]  # type: ignore[index]
            assert seat.cell is not None
            word, value = seat.hear()
            if word == "report":
                self._watcher.report(seat.cell, value)
            else:
                self._end(seat, word, value)

    def _end(self, seat: Seat, word: str, value: Any) -> None:
        cell, seat.cell = seat.cell, None
        assert cell is not None
        if word == "done":
            status = value["status"]
            kind = status if status in ("failed", "interrupted") else "done"
            outcome = Outcome(kind, value, value["error"] or "")
        elif word == "held":
            outcome = Outcome("held", cause=value)
        else:
            seat.dismiss()
            kind = "interrupted" if self._stopping else "failed"
            resume.settle(cell.folder, kind, value, cell.config.lock_minutes)
            outcome = Outcome(kind, resume.read(cell.folder), value)
        if self._isolate:
            seat.dismiss()
        self._conclude(cell, outcome)

    def _conclude(self, cell: Cell, outcome: Outcome) -> None:
        self.outcomes[cell.run] = outcome
        self._watcher.ended(cell, outcome)

    def _stop(self) -> None:
        """Ask what still runs to stop, wait for its checkpoints, and end all workers."""
        self._stopping = True
        if busy := self._busy():
            self._watcher.stopping(len(busy))
        for seat in busy:
            seat.terminate()
        patience = time.monotonic() + worker.GRACE
        asked = len(self.signals)
        while self._busy() and time.monotonic() < patience and len(self.signals) < asked + 1:
            self._listen()
        for seat in self._busy():
            seat.dismiss(wait=0)
            self._end(seat, "failed", "it did not stop in time")
        for seat in self._seats:
            seat.dismiss()


def cores() -> int:
    """CPU cores that this process may use; a container's quota counts."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return usable or 1
    limit = usable if quota == "max" else max(1, int(quota) // int(period))
    return min(usable or 1, limit or 1)


def setups(cells: Sequence[Cell], trusted: Sequence[Path], gpus: int) -> list[worker.Setup]:
    """One setup for each worker that may live at a time: one per GPU, or one per core / threads."""
    config = cells[0].config
    wanted, device = config.n_jobs, config.device
    names = gpu_names(gpus) if device in ("auto", "cuda") else []
    threads = max(cell.config.threads for cell in cells)
    fitting = len(names) or (max(1, cores() // threads) if device in ("auto", "cpu") else 1)
    number = min(fitting if wanted == "auto" else wanted, len(cells))
    own = [names[i % len(names)] if names else None for i in range(number)]
    return [worker.Setup(tuple(trusted), gpu) for gpu in own]


def gpu_names(number: int) -> list[str]:
    """The GPUs of this process, as ``CUDA_VISIBLE_DEVICES`` names them one by one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[:number] if visible else [str(i) for i in range(number)]
