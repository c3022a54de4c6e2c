"""How verdicts of alternatives, parts and settings combine."""

import itertools

import pytest

from stability.claims.verdict import (
    CONDITIONAL,
    FAILS,
    HALF,
    HOLDS,
    INCONCLUSIVE,
    NOT_MEASURED,
    REPORTED,
    Verdict,
    across_clauses,
    across_settings,
    all_of,
    any_of,
)

FOUR = (HOLDS, FAILS, INCONCLUSIVE, NOT_MEASURED)


@pytest.mark.parametrize("verdicts", list(itertools.product(FOUR, repeat=3)))
def test_one_alternative_must_hold(verdicts):
    expected = NOT_MEASURED
    expected = FAILS if FAILS in verdicts else expected
    expected = INCONCLUSIVE if INCONCLUSIVE in verdicts else expected
    expected = HOLDS if HOLDS in verdicts else expected
    assert any_of(verdicts) == expected


@pytest.mark.parametrize("verdicts", list(itertools.product((*FOUR, REPORTED), repeat=3)))
def test_all_parts_of_a_statement_must_hold(verdicts):
    decided = set(verdicts) - {REPORTED}
    expected = HOLDS if decided == {HOLDS} else INCONCLUSIVE
    expected = NOT_MEASURED if NOT_MEASURED in decided or not decided else expected
    expected = FAILS if FAILS in decided else expected
    assert all_of(verdicts) == expected


@pytest.mark.parametrize(
    ("verdicts", "expected", "reason"),
    [
        ((), NOT_MEASURED, ""),
        ((HOLDS, HOLDS), HOLDS, ""),
        ((FAILS, FAILS), FAILS, ""),
        ((NOT_MEASURED,), NOT_MEASURED, ""),
        ((HOLDS, NOT_MEASURED), HOLDS, "holds: a; not measured: b"),
        ((FAILS, NOT_MEASURED), FAILS, "fails: a; not measured: b"),
        ((NOT_MEASURED, INCONCLUSIVE), INCONCLUSIVE, "inconclusive: b; not measured: a"),
        ((HOLDS, INCONCLUSIVE), INCONCLUSIVE, "holds: a; inconclusive: b"),
        ((FAILS, INCONCLUSIVE), INCONCLUSIVE, "fails: a; inconclusive: b"),
        ((FAILS, HOLDS, HOLDS), CONDITIONAL, "holds: b | c; fails: a"),
        ((FAILS, HOLDS, INCONCLUSIVE), CONDITIONAL, "holds: b; fails: a; inconclusive: c"),
    ],
)
def test_settings_that_hold_and_fail_are_conditional_and_one_left_open_leaves_all_open(
    verdicts, expected, reason
):
    assert across_settings(dict(zip("abc", verdicts, strict=False))) == (expected, reason)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((HOLDS,), HOLDS),
        ((HOLDS, HOLDS), HOLDS),
        ((FAILS, FAILS), FAILS),
        ((HOLDS, FAILS), HALF),
        ((HOLDS, FAILS, INCONCLUSIVE), HALF),
        ((HOLDS, INCONCLUSIVE), INCONCLUSIVE),
        ((HOLDS, NOT_MEASURED), NOT_MEASURED),
        ((FAILS, NOT_MEASURED), NOT_MEASURED),
        ((HOLDS, CONDITIONAL), CONDITIONAL),
        ((HOLDS, FAILS, CONDITIONAL), CONDITIONAL),
        ((), NOT_MEASURED),
    ],
)
def test_a_statement_of_which_a_clause_holds_and_another_fails_is_half(verdicts, expected):
    assert across_clauses(verdicts) == expected


def test_a_verdict_is_printed_as_its_words():
    assert f"{Verdict.BY_CONSTRUCTION}" == "by construction"
