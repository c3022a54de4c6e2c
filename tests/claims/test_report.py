"""The tables on the console and beside the runs."""

import json
import math

from law_sweeps import EXPONENT, claim_of
from stability.claims import report
from stability.claims.criterion import Criterion, Range
from stability.claims.evaluate import Finding, Result
from stability.claims.verdict import HOLDS


def test_json_is_json_whatever_a_criterion_admits(tmp_path):
    found = [Finding("q", "", "", "last_ratio", Criterion(Range(1.0, math.inf)), HOLDS, 2.0)]
    report.write([Result(claim_of(EXPONENT), HOLDS, "", found)], tmp_path)

    def refuse(word):
        raise AssertionError(word)

    (fact,) = json.loads((tmp_path / "claims.json").read_text(), parse_constant=refuse)
    assert fact["findings"][0]["admits"] == [1.0, None]
