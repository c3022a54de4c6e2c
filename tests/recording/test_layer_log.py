"""Which steps reach the layers table: those whose turn it is, and those of the ring."""

from typing import Any

import pytest

from stability.recording.layer_log import LayerLog


class Recorded:
    """A recorded step whose rows are its constants."""

    def rows(self, **constant: Any) -> dict[str, Any]:
        return constant


class Table:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def append(self, rows: dict[str, Any]) -> None:
        assert rows["run"] == "abc"
        self.steps.append(rows["step"])


def log_of(every: int, ring: int, last: int | None = None) -> tuple[LayerLog, list[int]]:
    table = Table()
    return LayerLog(table, "abc", every, ring, last), table.steps  # type: ignore[arg-type]


def add(log: LayerLog, steps: range) -> None:
    for step in steps:
        log.add(step, Recorded())  # type: ignore[arg-type]


def test_multiples_and_the_last_step_are_written_at_once():
    log, written = log_of(every=3, ring=0, last=7)
    add(log, range(8))
    assert written == [0, 3, 6, 7]
    assert [s for s in range(8) if log.is_written(s)] == written
    assert [s for s in range(8) if log.is_recorded(s)] == written
    log.write_ring(before=99)
    assert written == [0, 3, 6, 7]


@pytest.mark.parametrize(("before", "wanted"), [(9, [7, 8]), (8, [7]), (7, []), (99, [7, 8])])
def test_a_ring_holds_the_last_of_the_other_steps_until_they_are_written(before, wanted):
    log, written = log_of(every=5, ring=2)
    assert log.has_ring and all(log.is_recorded(s) for s in range(9))
    add(log, range(9))
    assert written == [0, 5]
    log.write_ring(before)
    assert written == [0, 5, *wanted]
    log.write_ring(before)
    assert written == [0, 5, *wanted], "a step is written once"
