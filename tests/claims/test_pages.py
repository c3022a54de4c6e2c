"""Verdicts as markdown."""

import math
from dataclasses import replace

import pytest

from law_sweeps import EXPONENT, claim_of
from stability.claims import pages, syntax
from stability.claims.criterion import Criterion, Range
from stability.claims.evaluate import Finding, Result
from stability.claims.verdict import (
    BY_CONSTRUCTION,
    CONDITIONAL,
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    NOT_MEASURED,
    REPORTED,
    Verdict,
)
from stability.config import folders


def test_a_page_links_only_pages_that_there_are(tmp_path):
    result = Result(claim_of(by_construction="t"), BY_CONSTRUCTION, "t")
    assert "experiments/q.md" not in pages.report([result], {}, {})
    assert "experiments/q.md" in pages.report([result], {}, {"q": "q.md"})


GPT = Finding(
    "q", "GPT", "", "last_ratio", Criterion(Range(1, math.inf)), HOLDS, 1.23456, 1, 2.5, 6,
    sweep="q",
)  # fmt: skip


def page_of(*findings, verdict=HOLDS, reason="", **node):
    return Result(claim_of(EXPONENT, **node), verdict, reason, findings)


def test_a_section_has_a_row_per_finding_and_a_column_for_whatever_one_of_them_says():
    other = Finding("q", "", "", "increment", None, REPORTED, "a | b", reason="why", sweep="q")
    result = page_of(replace(GPT, theory=1.23, setting="depth=6"), other, figure="variance")
    assert (
        pages.section(result)
        == """**holds**

| setting | measured | criterion | theory | seeds | verdict | figure |
| --- | --- | --- | --- | --- | --- | --- |
| GPT, depth=6 | 1.235 [1, 2.5] | >= 1 | 1.23 | 6 | holds | q/figures/variance.png |
| all runs | a \\| b (why) |  |  |  | reported | q/figures/variance.png |
"""
    )


def test_a_section_leaves_out_the_columns_of_which_no_finding_says_anything():
    bare = replace(GPT, criterion=None, value=None, low=None, high=None, seeds=0, verdict=REPORTED)
    assert pages.section(page_of(bare)).splitlines()[2:] == [
        "| setting | verdict |",
        "| --- | --- |",
        "| GPT | reported |",
    ]


def test_what_is_true_of_seeds_is_counted():
    share = replace(GPT, value=0.7, low=0.457, high=0.881, seeds=20, count=14)
    assert pages.measured(share) == "14 of 20 seeds [0.457, 0.881]"


def test_identities_come_last_in_a_report():
    identity = page_of(GPT, identity=True, statement="identity")
    proven = Result(claim_of(by_construction="t", statement="proven"), BY_CONSTRUCTION, "t")
    text = pages.report([proven, identity, page_of(GPT, statement="measured")], {}, {})
    said = [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| [")]
    assert said == ["measured", "proven", "identity"]


def test_alternatives_stand_beside_the_criterion():
    found = page_of(replace(GPT, otherwise="seeds: >= 0.5"))
    assert pages.judged_by(found) == "GPT: >= 1, or seeds: >= 0.5"


def test_a_verdict_names_what_it_covers_and_runs_that_were_changed():
    result = replace(page_of(GPT, scope="linear branch"), departures=["on runs of q with depth=6"])
    assert pages.section(result).startswith("**holds (linear branch)**")
    text = pages.report([result], {}, {})
    assert "| **holds (linear branch)** |" in text
    assert "- on runs of q with depth=6\n" in text


def test_a_section_without_findings_is_the_verdict_and_its_reason():
    result = Result(claim_of(by_construction="t"), BY_CONSTRUCTION, "tests/x.py::test_y")
    assert pages.section(result) == "**by construction**: tests/x.py::test_y\n"


def test_the_page_of_all_claims_has_their_verdicts_and_then_each_of_them():
    results = [page_of(GPT, reason="a | b", statement="It\n  grows."), page_of(verdict=FAILS)]
    assert (
        pages.all_claims(results)
        == """# Claims, measured

| claim | verdict | where |
| --- | --- | --- |
| [q](#q) | holds | a \\| b |
| [q](#q) | fails |  |

## q

It grows.

**holds**: a | b

| setting | measured | criterion | seeds | verdict |
| --- | --- | --- | --- | --- |
| GPT | 1.235 [1, 2.5] | >= 1 | 6 | holds |

## q

s

**fails**
"""
    )


def test_a_report_has_a_table_and_then_each_claim_with_its_links():
    results = [
        page_of(GPT, replace(GPT, part="small", verdict=FAILS), verdict=CONDITIONAL),
        page_of(GPT, statement="a | b"),
    ]
    assert (
        pages.report(results, {"q": "page/q.png"}, {"q": "../q.md"})
        == """| claim | what it says | judged by | verdict |
| --- | --- | --- | --- |
| [q](#q) | s | GPT: >= 1; small: >= 1 | **conditional** |
| [q](#q) | a \\| b | GPT: >= 1 | **holds** |

### q

s

**conditional**

- holds: GPT
- fails: small

Derivation, command and all numbers: [experiments/q.md](../q.md).

![q: what was measured, and the criterion](page/q.png)

### q

a | b

**holds**

Derivation, command and all numbers: [experiments/q.md](../q.md).

![q: what was measured, and the criterion](page/q.png)
"""
    )


def test_the_page_of_this_repository_holds_a_verdict_of_every_claim():
    page = folders.experiments_dir().parent / "docs" / "claims.md"
    claims = [c for c in syntax.read_claims(folders.experiments()) if not c.like]
    held = pages.verdicts(page.read_text())
    last = [c.id for c in claims if c.by_construction or c.identity]
    assert list(held) == [c.id for c in claims if c.id not in last] + last
    assert {v.partition(" (")[0] for v in held.values()} <= set(Verdict) - {NOT_MEASURED}


@pytest.mark.parametrize("verdict", Verdict)
def test_the_verdicts_of_a_report_are_read_back_from_its_page(verdict):
    page = f"| [x](#x) | y | **z** |\n{pages.START}\n{pages.END}\n"
    assert pages.verdicts(page) == {}
    results = [page_of(GPT, verdict=verdict, statement="a | [b](#c) | **d**", reason="e")]
    assert pages.verdicts(pages.fill(page, pages.report(results, {}, {}))) == {"q": verdict}


def test_a_verdict_rests_on_parts_with_a_criterion_or_on_a_test():
    reported = replace(GPT, part="other", criterion=None, verdict=REPORTED)
    small = replace(GPT, part="", criterion=Criterion(text="mlp"))
    assert pages.judged_by(page_of(GPT, reported, small)) == "GPT: >= 1; mlp"
    assert pages.judged_by(page_of(GPT, verdict=BY_CONSTRUCTION)) == "a test"


def test_parts_and_settings_are_named_by_verdict_and_counted_where_they_are_many():
    def settings(count, verdict=HOLDS, part="GPT"):
        return [
            replace(GPT, part=part, setting=f"{part}{n}", verdict=verdict) for n in range(count)
        ]

    fails = replace(GPT, part="small", verdict=FAILS)
    for findings, said in (
        ([*settings(2), fails], ["holds: GPT (both settings)", "fails: small"]),
        ([*settings(3), fails], ["holds: GPT (all 3 settings)", "fails: small"]),
        (
            [*settings(4), replace(fails, part="GPT", setting="x")],
            ["holds: GPT (GPT0, or GPT1, or GPT2, or GPT3)", "fails: GPT (x)"],
        ),
        (
            [*settings(5, INCONCLUSIVE), replace(fails, part="GPT", setting="x")],
            ["fails: GPT (x)", "inconclusive: GPT (5 of 6 settings)"],
        ),
        ([GPT, replace(fails, verdict=NOT_MEASURED)], ["holds: GPT", "not measured: small"]),
        ([GPT, replace(fails, criterion=None)], []),
        (settings(3), []),
    ):
        assert pages.by_verdict(page_of(*findings)) == said


@pytest.mark.parametrize("node", [{"together": True}, {"verdict": NOT_MEASURED}])
def test_what_is_one_statement_or_not_measured_gives_its_reason(node):
    fails = replace(GPT, part="small", verdict=FAILS)
    assert pages.by_verdict(page_of(GPT, fails, reason="why", **node)) == ["why"]
    assert pages.by_verdict(page_of(GPT, fails, **node)) == []


@pytest.mark.parametrize("page", ["a", f"{pages.START}\na", f"a\n{pages.END}", ""])
def test_a_page_without_both_marks_is_left_as_it_is(page):
    assert pages.held(page) is None
    assert pages.fill(page, "new\n") == page
    assert pages.verdicts(page) == {}


def test_a_page_is_filled_between_its_first_marks_and_nowhere_else():
    page = f"a\n{pages.START}\nb\n{pages.END}\nc\n{pages.START}\nd\n{pages.END}\n"
    assert pages.held(page) == "\nb\n"
    filled = pages.fill(page, "new\n")
    assert filled == page.replace("\nb\n", "\nnew\n")
    assert pages.fill(filled, "") == page.replace("\nb\n", "\n")


def test_a_report_says_what_a_verdict_rests_on_and_counts_settings():
    base = Finding("q", "GPT", "", "last_ratio", Criterion(Range(1, math.inf)), HOLDS, 1.0)
    found = [replace(base, setting=f"depth={L}") for L in range(6)]
    found += [replace(base, setting="depth=9", verdict=FAILS)]
    found += [replace(base, part="linear branch", criterion=Criterion(Range(0, 1)))]
    result = Result(claim_of({**EXPONENT, "name": "GPT"}), CONDITIONAL, "", found)
    text = pages.report([result], {}, {})
    assert "| GPT: >= 1; linear branch: 0 to 1 |" in text
    assert "- holds: GPT (6 of 7 settings); linear branch\n- fails: GPT (depth=9)" in text
