"""Token positions: which of them are looked at one by one, and in which groups."""

import numpy as np

POSITIONS = 64


def positions(time: int, at_most: int = POSITIONS) -> list[int]:
    """At most so many evenly spaced positions out of ``time``, the first and the last included."""
    even = np.linspace(0, time - 1, min(time, at_most))
    return [int(position) for position in even.round()]


def groups(time: int) -> dict[str, slice]:
    """By name: position 0, the rest of the first quarter, all later ones."""
    quarter = max(time // 4, 1)
    return {"first": slice(0, 1), "quarter": slice(1, quarter), "rest": slice(quarter, time)}
