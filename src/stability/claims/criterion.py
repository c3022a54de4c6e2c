"""Criteria, and how numbers or texts, one from each seed, are judged by them.

In a yaml a criterion is one of ``{between: [a, b]}``, ``{at_least: a}``, ``{at_most: b}`` or
``{is: text}``. A number's holds where the whole interval over seeds lies in the range and fails
where none of the interval does; an interval that straddles an end is inconclusive. With
``fails: {...}`` beside it, it fails only where the whole interval lies in that second range.

What is true or false of a seed is judged by the share of seeds and its exact interval.
``at_least: 1`` asks for every seed: all must do it, and one that does not refutes it.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stability.claims import yaml_types
from stability.claims.verdict import FAILS, HOLDS, INCONCLUSIVE, NOT_MEASURED, REPORTED, Verdict
from stability.claims.yaml_types import BadClaim
from stability.results.fits import Interval, share_interval, t_interval

LEAST_SEEDS = 5


@dataclass(frozen=True)
class Range:
    """The numbers from low to high, ends included."""

    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.low):
            return f"<= {self.high:g}"
        if math.isinf(self.high):
            return f">= {self.low:g}"
        return f"{self.low:g} to {self.high:g}"

    def contains(self, found: Interval) -> bool:
        return self.low <= found.low and found.high <= self.high

    def excludes(self, found: Interval) -> bool:
        return found.high < self.low or found.low > self.high


@dataclass(frozen=True)
class Criterion:
    """What a measure must give: a number in a range, or a certain text."""

    admits: Range | None = None
    """None for a text."""
    fails: Range | None = None
    """Where the whole interval must lie to fail; without it, anywhere outside of ``admits``."""
    text: str = ""

    def __str__(self) -> str:
        """As tables print it."""
        if self.admits is None:
            return self.text
        return f"{self.admits}, fails {self.fails}" if self.fails else str(self.admits)

    @property
    def asks_for_every_seed(self) -> bool:
        """Whether no share of seeds but all of them satisfies it."""
        return self.admits is not None and self.admits.low == 1

    def judge(self, found: Interval | Counter[str]) -> Verdict:
        """The verdict of an interval over seeds, or of the texts that seeds gave.

        Raises:
            TypeError: the criterion is about the other of the two.
        """
        if isinstance(found, Counter):
            return self._judge_texts(found)
        return self._judge_interval(found)

    def _judge_interval(self, found: Interval) -> Verdict:
        if self.admits is None:
            raise TypeError(f"a number cannot be judged by the text {self.text}")
        if self.admits.contains(found):
            return HOLDS
        failed = self.fails.contains(found) if self.fails else self.admits.excludes(found)
        return FAILS if failed else INCONCLUSIVE

    def _judge_texts(self, found: Counter[str]) -> Verdict:
        if self.admits is not None:
            raise TypeError(f"a text cannot be judged by the range {self.admits}")
        if set(found) == {self.text}:
            return HOLDS
        return INCONCLUSIVE if self.text in found else FAILS


def read_criterion(key: str, node: object) -> Criterion | None:
    """A criterion as a yaml states it; None for an empty field.

    Raises:
        BadClaim: it is of no known form, or its range is empty.
    """
    if node is None:
        return None
    stated = yaml_types.mapping(key, node)
    if set(stated) == {"is"}:
        return Criterion(text=yaml_types.text(f"{key}.is", stated["is"]))
    fails = _range(yaml_types.mapping("fails", stated["fails"])) if "fails" in stated else None
    return Criterion(_range({k: v for k, v in stated.items() if k != "fails"}), fails)


def _range(node: Mapping[str, object]) -> Range:
    forms = list(node)
    if len(forms) != 1 or forms[0] not in ("between", "at_least", "at_most"):
        raise BadClaim(f"{dict(node)}: must be one of between, at_least, at_most, is")
    form, value = forms[0], node[forms[0]]
    ends = value if form == "between" else [value, math.inf]
    ends = [-math.inf, value] if form == "at_most" else ends
    numbers = [float(v) for v in ends if yaml_types.is_number(v)] if isinstance(ends, list) else []
    if len(numbers) != 2 or not numbers[0] <= numbers[1]:
        raise BadClaim(f"{form}: {value}: must be numbers, the smaller one first")
    return Range(*numbers)


class Judged(NamedTuple):
    """A verdict with the numbers that led to it; texts have no interval."""

    verdict: Verdict
    value: float | str | None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    true_of: int | None = None
    """Of what is true or false: the seeds of which it is true."""


def judge(
    values: Sequence[float | str],
    criterion: Criterion | None,
    level: float = 0.95,
    geometric: bool = False,
) -> Judged:
    """The verdict of one number (or text) from each seed.

    Args:
        values: at least `LEAST_SEEDS`, else nothing was measured. Of a bool, the share is judged.
        criterion: without one the numbers are only reported.
        level: of the interval.
        geometric: whether the mean and its interval are of the logarithms.
    """
    texts = [v for v in values if isinstance(v, str)]
    numbers = [float(v) for v in values if not isinstance(v, str)]
    if len(values) < LEAST_SEEDS:
        mean = sum(numbers) / len(numbers) if numbers else None
        reason = f"{len(values)} seeds, at least {LEAST_SEEDS} are needed"
        return Judged(NOT_MEASURED, mean, reason=reason)
    if texts:
        counts = Counter(texts)
        return Judged(criterion.judge(counts) if criterion else REPORTED, _listed(counts))
    if all(isinstance(v, bool) for v in values):
        return _judge_share(int(sum(numbers)), len(numbers), criterion, level)
    found = t_interval(numbers, level, geometric)
    return Judged(criterion.judge(found) if criterion else REPORTED, *found)


def _judge_share(count: int, of: int, criterion: Criterion | None, level: float) -> Judged:
    """The verdict of what is true of so many seeds."""
    found = share_interval(count, of, level)
    if criterion is None:
        return Judged(REPORTED, *found, true_of=count)
    share = found.mean
    judged = Interval(share, share, share) if criterion.asks_for_every_seed else found
    return Judged(criterion.judge(judged), *found, true_of=count)


def _listed(counts: Counter[str]) -> str:
    """The texts, each with its number of seeds where they differ."""
    return "; ".join(f"{text} ({n})" if len(counts) > 1 else text for text, n in counts.items())
