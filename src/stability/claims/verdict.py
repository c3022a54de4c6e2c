"""From numbers over seeds to a word: criteria, and the verdict that they lead to.

A criterion is data, one of ``{between: [a, b]}``, ``{at_least: a}``, ``{at_most: b}`` or
``{is: text}``. It holds where the whole interval over seeds satisfies it and fails where none of
the interval does; what straddles is inconclusive. With ``fails: {...}`` beside it, it fails only
where the whole interval satisfies that.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stability.results.fits import Interval, t_interval

HOLDS, FAILS, CONDITIONAL = "holds", "fails", "conditional"
INCONCLUSIVE, BY_CONSTRUCTION, NOT_MEASURED = "inconclusive", "by construction", "not measured"
REPORTED = "reported"
"""No criterion: the number stands beside the others and decides nothing."""

LEAST_SEEDS = 5

Criterion = Mapping[str, Any]


class BadCriterion(Exception):
    """A criterion that says nothing that can be checked."""


class Judged(NamedTuple):
    """A verdict with the numbers that led to it; texts have no interval."""

    verdict: str
    value: float | str | None
    low: float | None
    high: float | None
    reason: str


def bounds(criterion: Criterion) -> tuple[float, float]:
    """Lower and upper end of what a criterion admits.

    Raises:
        BadCriterion: it is of no known form, or empty.
    """
    forms = [k for k in criterion if k != "fails"]
    if len(forms) != 1 or forms[0] not in ("between", "at_least", "at_most"):
        raise BadCriterion(f"{dict(criterion)}: must be one of between, at_least, at_most, is")
    value = criterion[forms[0]]
    pair = value if forms == ["between"] else (value, math.inf)
    pair = (-math.inf, value) if forms == ["at_most"] else pair
    numbers = [v for v in pair if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) != 2 or not numbers[0] <= numbers[1]:
        raise BadCriterion(f"{forms[0]}: {value}: must be numbers, the smaller one first")
    return float(numbers[0]), float(numbers[1])


def words(criterion: Criterion | None) -> str:
    """A criterion as tables print it."""
    if criterion is None:
        return ""
    if "is" in criterion:
        return str(criterion["is"])
    low, high = bounds(criterion)
    text = f"{low:g} to {high:g}"
    if math.isinf(high):
        text = f">= {low:g}"
    if math.isinf(low):
        text = f"<= {high:g}"
    return text + (f", fails {words(criterion['fails'])}" if "fails" in criterion else "")


def judge(
    values: Sequence[float | str],
    criterion: Criterion | None,
    level: float = 0.95,
    geometric: bool = False,
) -> Judged:
    """The verdict from one number (or text) per seed."""
    if len(values) < LEAST_SEEDS:
        reason = f"{len(values)} seeds, at least {LEAST_SEEDS} are needed"
        return Judged(NOT_MEASURED, _plain_mean(values), None, None, reason)
    if any(isinstance(v, str) for v in values):
        return _judge_texts([str(v) for v in values], criterion)
    found = t_interval([float(v) for v in values], level, geometric)
    return Judged(_compare(found, criterion), found.mean, found.low, found.high, "")


def _plain_mean(values: Sequence[float | str]) -> float | None:
    numbers = [float(v) for v in values if not isinstance(v, str)]
    return sum(numbers) / len(numbers) if numbers else None


def _compare(found: Interval, criterion: Criterion | None) -> str:
    if criterion is None:
        return REPORTED
    low, high = bounds(criterion)
    if low <= found.low and found.high <= high:
        return HOLDS
    if "fails" in criterion:
        low, high = bounds(criterion["fails"])
        return FAILS if low <= found.low and found.high <= high else INCONCLUSIVE
    return FAILS if found.high < low or found.low > high else INCONCLUSIVE


def _judge_texts(texts: Sequence[str], criterion: Criterion | None) -> Judged:
    counts = Counter(texts)
    shown = "; ".join(f"{text} ({n})" if len(counts) > 1 else text for text, n in counts.items())
    if criterion is None:
        return Judged(REPORTED, shown, None, None, "")
    if "is" not in criterion:
        raise BadCriterion(f"{dict(criterion)}: a text needs the form is")
    agree = counts[criterion["is"]]
    verdict = HOLDS if agree == len(texts) else INCONCLUSIVE if agree else FAILS
    return Judged(verdict, shown, None, None, "")


def either(verdicts: Sequence[str]) -> str:
    """Of alternatives one must hold."""
    for verdict in (HOLDS, INCONCLUSIVE, FAILS):
        if verdict in verdicts:
            return verdict
    return NOT_MEASURED


def together(verdicts: Sequence[str]) -> str:
    """Of parts of one statement all must hold."""
    decided = [v for v in verdicts if v != REPORTED]
    for verdict in (FAILS, NOT_MEASURED, INCONCLUSIVE):
        if verdict in decided:
            return verdict
    return HOLDS if decided else NOT_MEASURED


def over_settings(verdicts: Mapping[str, str]) -> tuple[str, str]:
    """The verdict of a claim from those of its settings, and which settings differ.

    Settings that were not measured do not decide, but are named.
    """
    by: dict[str, list[str]] = {}
    for setting, verdict in verdicts.items():
        by.setdefault(verdict, []).append(setting)
    if HOLDS in by and FAILS in by:
        verdict = CONDITIONAL
    elif INCONCLUSIVE in by:
        verdict = INCONCLUSIVE
    else:
        verdict = HOLDS if HOLDS in by else FAILS if FAILS in by else NOT_MEASURED
    order = [v for v in (HOLDS, FAILS, INCONCLUSIVE, NOT_MEASURED) if v in by]
    if len(order) < 2:
        return verdict, ""
    return verdict, "; ".join(f"{v}: {' | '.join(by[v])}" for v in order)
