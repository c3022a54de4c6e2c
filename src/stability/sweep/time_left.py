"""How long the rest of a sweep takes, from what its runs have taken so far."""

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass
class _Run:
    """What is known of one run."""

    cost: float
    began: float | None = None
    """When a worker took it."""
    first: tuple[float, float] | None = None
    """Time and share of its first report."""
    last: tuple[float, float] = (0.0, 0.0)
    """Time and share of its latest report."""
    ended: float | None = None

    @property
    def share(self) -> float:
        """The part of its steps that is made, 0 to 1."""
        return self.last[1]


class TimeLeft:
    """Estimates the seconds until a sweep ends.

    A run takes the time before its first report, which does not depend on its cost, and then a time
    in proportion to its cost. Both are means over the runs seen so far. A run that ended early (it
    diverged) counts with the steps that it made. The rest is dealt in order to as many workers as
    were busy at once.

    Args:
        costs: of every run, in the order in which they start.
        clock: seconds.
    """

    def __init__(
        self, costs: Mapping[str, float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runs = {name: _Run(cost) for name, cost in costs.items()}
        self._clock = clock
        self._workers = 0
        """The most runs that went on at once."""

    def started(self, name: str) -> None:
        self._runs[name].began = self._clock()
        busy = sum(run.began is not None and run.ended is None for run in self._runs.values())
        self._workers = max(self._workers, busy)

    def reported(self, name: str, share: float) -> None:
        """Note which share of a run's steps is made."""
        run, seen = self._runs[name], (self._clock(), share)
        run.first, run.last = run.first or seen, seen

    def ended(self, name: str, share: float) -> None:
        """Note the end of a run after this share of its steps."""
        run = self._runs[name]
        run.ended = self._clock()
        run.last = (run.ended, share)

    def seconds(self) -> float | None:
        """The estimate; None as long as no run has come forward."""
        rate = self._seconds_per_cost()
        if rate is None:
            return None
        now = self._clock()
        start = self._seconds_to_start()
        busy, waiting = [], []
        for run in self._runs.values():
            if run.began is None:
                waiting.append(start + rate * run.cost)
            elif run.ended is None:
                missing = 0.0 if run.first else max(0.0, start - (now - run.began))
                since = now - run.last[0] if run.first else 0.0
                busy.append(max(0.0, missing + rate * run.cost * (1 - run.share) - since))
        free = [0.0] * (self._workers - len(busy))
        return _dealt(busy + free, waiting)

    def _seconds_per_cost(self) -> float | None:
        """Seconds after the first report over the cost of the steps made since then."""
        seconds = cost = 0.0
        for run in self._runs.values():
            if run.first is not None:
                seconds += run.last[0] - run.first[0]
                cost += run.cost * (run.share - run.first[1])
        return seconds / cost if cost > 0 else None

    def _seconds_to_start(self) -> float:
        """Mean seconds from the start of a run to its first report."""
        runs = self._runs.values()
        seen = [run.first[0] - run.began for run in runs if run.first and run.began is not None]
        return fmean(seen) if seen else 0.0


def _dealt(workers: list[float], waiting: Sequence[float]) -> float:
    """When the last worker is done, if each takes the next waiting run as soon as it is free."""
    heapq.heapify(workers)
    for seconds in waiting:
        heapq.heapreplace(workers, workers[0] + seconds)
    return max(workers)
