"""Types and legal ranges of knobs, each with the words of the help text and of a refusal."""

import math
import re
from collections.abc import Callable
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin

from stability.config.suggestions import meant

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
    list: "a list, [a,b,...]",
    dict: "a group of keys, {key: value}",
}
"""What a refusal calls a type."""


def typed(value: Any, wanted: Any) -> Any:
    """A value with the type of a knob.

    Whole numbers become floats and scalars become words, where those are wanted.

    Raises:
        TypeError: the value has another type; says in words which type is wanted.
    """
    if wanted is Any:
        return value
    if isinstance(wanted, UnionType):
        return None if value is None else typed(value, get_args(wanted)[0])
    kind = get_origin(wanted) or wanted
    if kind is float and type(value) is int:
        return float(value) if abs(value) < 2**63 else value
    if kind is str and isinstance(value, int | float):
        return str(value)
    if type(value) is not kind:
        raise TypeError(WORDS[kind])
    if kind is not list:
        return value
    try:
        return [typed(each, get_args(wanted)[0]) for each in value]
    except TypeError as error:
        raise TypeError(f"a list, each value {error}") from error


def spelled(value: object) -> str:
    """A value as it is typed on the command line: ``null``, ``true``, ``[a,b]``."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(spelled, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


class Legal(NamedTuple):
    """A legal range: a test, and the words for it."""

    text: str
    test: Callable[[Any], bool]
    names: tuple[str, ...] = ()
    """The legal words, where there are only some."""

    def refusal(self, value: object) -> str:
        """Why a value is refused: what is legal, and what was probably meant."""
        hint = meant(spelled(value), self.names)
        return f"must be {self.text}" + (f"; {hint}" if hint else "")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def at_least(low: float, high: float = math.inf) -> Legal:
    text = f">= {low:,}" if high == math.inf else f"{low:,} to {high:,}"
    return Legal(text, lambda v: _number(v) and low <= v <= high)


def above(low: float, high: float) -> Legal:
    return Legal(f"> {low:,}, <= {high:,}", lambda v: _number(v) and low < v <= high)


def fraction() -> Legal:
    return Legal("0 <= value < 1", lambda v: _number(v) and 0 <= v < 1)


def one_of(*names: object) -> Legal:
    words = tuple(map(str, names))
    return Legal("one of " + ", ".join(words), lambda v: v in names, words)


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
