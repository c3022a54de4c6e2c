"""Verdicts as markdown."""

import math
from dataclasses import replace

from law_sweeps import EXPONENT, claim_of
from stability.claims import pages
from stability.claims.criterion import Criterion, Range
from stability.claims.evaluate import Finding, Result
from stability.claims.verdict import BY_CONSTRUCTION, CONDITIONAL, FAILS, HOLDS


def test_a_page_links_only_pages_that_there_are(tmp_path):
    result = Result(claim_of(by_construction="t"), BY_CONSTRUCTION, "t")
    assert "experiments/q.md" not in pages.report([result], {}, {})
    assert "experiments/q.md" in pages.report([result], {}, {"q": "q.md"})


def test_a_report_says_what_a_verdict_rests_on_and_counts_settings():
    base = Finding("q", "GPT", "", "last_ratio", Criterion(Range(1, math.inf)), HOLDS, 1.0)
    found = [replace(base, setting=f"depth={L}") for L in range(6)]
    found += [replace(base, setting="depth=9", verdict=FAILS)]
    found += [replace(base, part="linear branch", criterion=Criterion(Range(0, 1)))]
    result = Result(claim_of({**EXPONENT, "name": "GPT"}), CONDITIONAL, "", found)
    text = pages.report([result], {}, {})
    assert "| GPT: >= 1; linear branch: 0 to 1 |" in text
    assert "- holds: GPT (6 of 7 settings); linear branch\n- fails: GPT (depth=9)" in text
