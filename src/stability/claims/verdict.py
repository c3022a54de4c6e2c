"""Verdicts, and how those of parts, alternatives and settings combine."""

from collections.abc import Collection, Mapping
from enum import StrEnum


class Verdict(StrEnum):
    """What is said of a claim, and of each of its findings."""

    HOLDS = "holds"
    FAILS = "fails"
    CONDITIONAL = "conditional"
    HALF = "half"
    """One clause of the statement holds, another fails."""
    INCONCLUSIVE = "inconclusive"
    BY_CONSTRUCTION = "by construction"
    NOT_MEASURED = "not measured"
    REPORTED = "reported"
    """There is no criterion: the number is shown and decides nothing."""


HOLDS, FAILS, CONDITIONAL = Verdict.HOLDS, Verdict.FAILS, Verdict.CONDITIONAL
HALF = Verdict.HALF
INCONCLUSIVE, BY_CONSTRUCTION = Verdict.INCONCLUSIVE, Verdict.BY_CONSTRUCTION
NOT_MEASURED, REPORTED = Verdict.NOT_MEASURED, Verdict.REPORTED


def any_of(verdicts: Collection[Verdict]) -> Verdict:
    """The verdict of alternatives: one must hold."""
    return _first((HOLDS, INCONCLUSIVE, FAILS), verdicts, NOT_MEASURED)


def all_of(verdicts: Collection[Verdict]) -> Verdict:
    """The verdict of the parts of one statement: all must hold. What is only reported is left out.

    Without a part that decides, nothing was measured.
    """
    decided = [v for v in verdicts if v != REPORTED]
    return _first((FAILS, NOT_MEASURED, INCONCLUSIVE, HOLDS), decided, NOT_MEASURED)


def across_settings(verdicts: Mapping[str, Verdict]) -> tuple[Verdict, str]:
    """The verdict of a claim from those of its settings, and which settings differ.

    Settings that were not measured do not decide, but are named.
    """
    by: dict[Verdict, list[str]] = {}
    for setting, verdict in verdicts.items():
        by.setdefault(verdict, []).append(setting)
    whole = _first((INCONCLUSIVE, HOLDS, FAILS), by, NOT_MEASURED)
    if HOLDS in by and FAILS in by:
        whole = CONDITIONAL
    named = [v for v in (HOLDS, FAILS, INCONCLUSIVE, NOT_MEASURED) if v in by]
    if len(named) < 2:
        return whole, ""
    return whole, "; ".join(f"{v}: {' | '.join(by[v])}" for v in named)


def across_clauses(verdicts: Collection[Verdict]) -> Verdict:
    """The verdict of a statement from those of its clauses."""
    if HOLDS in verdicts and FAILS in verdicts and CONDITIONAL not in verdicts:
        return HALF
    return _first((CONDITIONAL, NOT_MEASURED, INCONCLUSIVE, FAILS, HOLDS), verdicts, NOT_MEASURED)


def _first(order: Collection[Verdict], found: Collection[Verdict], otherwise: Verdict) -> Verdict:
    """The first verdict of an order that was found."""
    return next((verdict for verdict in order if verdict in found), otherwise)
