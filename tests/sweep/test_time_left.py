"""The estimate of the time left against sweeps whose times are known."""

import heapq
from dataclasses import dataclass, field

import pytest

from stability.sweep.time_left import TimeLeft


@dataclass
class Sweep:
    """Runs that take `start` seconds and then `rate` seconds per cost, on some workers."""

    costs: dict[str, float]
    start: float = 3.0
    rate: float = 2.0
    workers: int = 2
    breaks_at: dict[str, float] = field(default_factory=dict)
    """Share of its steps after which a run diverges."""
    now: float = 0.0

    def events(self):
        """(time, what, run, share), in the order of time; ten reports a run."""
        free, events = [0.0] * self.workers, []
        for name, cost in self.costs.items():
            began, made = heapq.heappop(free), self.breaks_at.get(name, 1.0)
            trained = self.rate * cost
            shares = [i / 10 for i in range(10) if i / 10 <= made]
            events.append((began, "started", name))
            events += [(began + self.start + trained * s, "reported", name, s) for s in shares]
            events.append((began + self.start + trained * made, "ended", name, made))
            heapq.heappush(free, began + self.start + trained * made)
        return sorted(events)

    def estimates(self):
        """After each end of a run but the last: how many have ended, estimate, truth."""
        left, done = TimeLeft(self.costs, clock=lambda: self.now), 0
        events = self.events()
        for self.now, what, *told in events:
            getattr(left, what)(*told)
            done += what == "ended"
            if what == "ended" and done < len(self.costs):
                yield done, left.seconds(), events[-1][0] - self.now


DEPTHS = {f"{norm}-{depth}": float(depth) for norm in "abc" for depth in (6, 24, 96)}
SWEEPS = {
    "equal runs": Sweep(dict.fromkeys("abcdefgh", 10.0)),
    "depths 6, 24, 96": Sweep(DEPTHS),
    "one worker": Sweep(DEPTHS, workers=1),
    "a long start": Sweep(DEPTHS, start=60.0),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_from_the_second_end_on_the_estimate_is_right_within_a_third(name):
    seen = [(estimate, truth) for n, estimate, truth in SWEEPS[name].estimates() if n >= 2]
    assert len(seen) >= 5
    for estimate, truth in seen:
        assert estimate == pytest.approx(truth, rel=1 / 3)


def test_runs_that_broke_do_not_make_the_rest_look_fast():
    sweep = Sweep(dict.fromkeys("abcdef", 50.0), breaks_at={"a": 0.0, "b": 0.0, "c": 0.1})
    ((estimate, truth),) = [(e, t) for n, e, t in sweep.estimates() if n == 3]
    assert estimate == pytest.approx(truth, rel=0.1)


def test_there_is_no_estimate_before_a_run_has_come_forward():
    left = TimeLeft({"a": 1.0}, clock=lambda: 0.0)
    assert left.seconds() is None
    left.started("a")
    left.reported("a", 0.0)
    assert left.seconds() is None
