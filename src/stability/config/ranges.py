"""Legal ranges of knobs: each a test, and the words that the help text and a refusal say."""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple


class Legal(NamedTuple):
    """A legal range: a test, and the words for it."""

    text: str
    test: Callable[[Any], bool]


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def at_least(low: float, high: float = math.inf) -> Legal:
    text = f">= {low:,}" if high == math.inf else f"{low:,} to {high:,}"
    return Legal(text, lambda v: _number(v) and low <= v <= high)


def above(low: float, high: float) -> Legal:
    return Legal(f"> {low:,}, <= {high:,}", lambda v: _number(v) and low < v <= high)


def share(closed: bool = False) -> Legal:
    if closed:
        return Legal("0 to 1", lambda v: _number(v) and 0 <= v <= 1)
    return Legal("0 <= value < 1", lambda v: _number(v) and 0 <= v < 1)


def one_of(*names: object) -> Legal:
    return Legal("one of " + ", ".join(map(str, names)), lambda v: v in names)


def subset(names: tuple[str, ...], empty: bool = False) -> Legal:
    return Legal(
        f"a list of distinct names out of {', '.join(names)}",
        lambda v: (empty or len(v) > 0) and set(v) <= set(names) and len(set(v)) == len(v),
    )


def matches(pattern: str, text: str) -> Legal:
    return Legal(text, lambda v: isinstance(v, str) and re.fullmatch(pattern, v) is not None)


def whole(low: int, high: int) -> Legal:
    number = at_least(low, high)
    return Legal(f"a whole number, {number.text}", lambda v: isinstance(v, int) and number.test(v))


def either(word: str, number: Legal) -> Legal:
    return Legal(f"{word} or {number.text}", lambda v: v == word or number.test(v))


def optional(legal: Legal) -> Legal:
    return Legal(f"unset, or {legal.text}", lambda v: v is None or legal.test(v))


ANY = Legal("", lambda v: True)
FLAG = Legal("true or false", lambda v: isinstance(v, bool))
