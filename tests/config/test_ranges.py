"""Legal ranges: which edges belong to them, and what they say."""

import math

import pytest

from stability.config import ranges
from stability.config.ranges import Legal

ABC = ("a", "b", "c")

RANGES: list[tuple[Legal, str, list[object], list[object]]] = [
    (ranges.at_least(1), ">= 1", [1, 1.5, 10**9], [0, 0.999, -1, math.inf, math.nan, True, "2"]),
    (ranges.at_least(1, 2000), "1 to 2,000", [1, 2000], [0.999, 2000.1, -math.inf, None]),
    (ranges.above(0, 2000), "> 0, <= 2,000", [1e-9, 2000], [0, -1, 2000.1, True]),
    (ranges.fraction(), "0 <= value < 1", [0, 0.999], [-1e-9, 1, False]),
    (ranges.one_of(1, "b"), "one of 1, b", [1, "b"], [2, "a"]),
    (
        ranges.subset(ABC),
        "a list of distinct names out of a, b, c",
        [["a"], ["c", "a", "b"]],
        [[], ["a", "a"], ["a", "d"]],
    ),
    (
        ranges.subset(ABC, empty=True),
        "a list of distinct names out of a, b, c",
        [[], ["a"]],
        [["b", "b"], ["d"]],
    ),
    (ranges.matches(r"a+", "some a"), "some a", ["a", "aaa"], ["", "ab", "ba", None]),
    (ranges.whole(2, 9), "a whole number, 2 to 9", [2, 9], [1, 10, 2.0, "2", True]),
    (ranges.either("auto", ranges.at_least(1)), "auto or >= 1", ["auto", 1], ["all", 0]),
    (ranges.optional(ranges.at_least(1)), "unset, or >= 1", [None, 1], [0, "auto"]),
    (ranges.ANY, "", [None, "a", -1], []),
    (ranges.FLAG, "true or false", [True, False], [0, 1, "true", None]),
]


@pytest.mark.parametrize(("legal", "text", "inside", "outside"), RANGES, ids=lambda v: str(v)[:30])
def test_a_range_takes_its_edges_and_nothing_beyond(legal, text, inside, outside):
    assert legal.text == text
    assert all(legal.test(value) is True for value in inside)
    assert not any(legal.test(value) for value in outside)
