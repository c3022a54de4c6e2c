"""The tables on the console and beside the runs."""

import csv
import io
import json
import math
from dataclasses import replace

from rich.console import Console

from law_sweeps import EXPONENT, claim_of
from stability.claims import pages, report
from stability.claims.criterion import Criterion, Range
from stability.claims.evaluate import Finding, Result
from stability.claims.verdict import BY_CONSTRUCTION, FAILS, HOLDS, NOT_MEASURED, REPORTED


def test_json_is_json_whatever_a_criterion_admits(tmp_path):
    found = [Finding("q", "", "", "last_ratio", Criterion(Range(1.0, math.inf)), HOLDS, 2.0)]
    report.write([Result(claim_of(EXPONENT), HOLDS, "", found)], tmp_path)

    def refuse(word):
        raise AssertionError(word)

    (fact,) = json.loads((tmp_path / "claims.json").read_text(), parse_constant=refuse)
    assert fact["findings"][0]["admits"] == [1.0, None]


GPT = Finding(
    "q", "GPT", "", "last_ratio", Criterion(Range(1, 2), Range(-1, 0)), HOLDS, 1.23456, 1, 1.5, 6,
    theory=1.1, sweep="other",
)  # fmt: skip
FACTS = {
    "claim": "q", "part": "GPT", "setting": "", "measure": "last_ratio",
    "criterion": "1 to 2, fails -1 to 0", "verdict": "holds", "value": 1.23456, "low": 1,
    "high": 1.5, "seeds": 6, "theory": 1.1, "no_theory": "", "reason": "", "sweep": "other",
    "clause": "", "otherwise": "", "count": None,
    "admits": [1, 2], "absent": False,
}  # fmt: skip


def test_the_files_beside_the_runs_hold_every_finding_whole(tmp_path):
    bare = replace(GPT, criterion=None, verdict=REPORTED, value="text", low=None, high=None)
    absent = replace(GPT, absent=True, reason="no runs", verdict=NOT_MEASURED)
    result = Result(claim_of(EXPONENT, statement="a\n b"), HOLDS, "why", [GPT, bare, absent])
    names = [f"claims.{form}" for form in ("md", "csv", "json")]
    assert report.write([result, result], tmp_path / "out") == [tmp_path / "out" / n for n in names]
    both = json.loads((tmp_path / "out" / "claims.json").read_text())
    assert both[0] == both[1]
    findings = both[0].pop("findings")
    assert both[0] == {
        "claim": "q", "statement": "a b", "source": "s", "verdict": "holds", "scope": "",
        "reason": "why",
    }  # fmt: skip
    assert list(findings[0].items()) == list(FACTS.items())
    own = {"criterion": "", "verdict": "reported", "value": "text", "low": None, "high": None}
    assert findings[1] == {**FACTS, **own, "admits": None}
    own = {"verdict": "not measured", "reason": "no runs", "admits": None, "absent": True}
    assert findings[2] == {**FACTS, **own}
    with (tmp_path / "out" / "claims.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 6
    assert lines[0] == {k: "" if v is None else str(v) for k, v in FACTS.items()} | {
        "admits": "(1, 2)"
    }
    assert (tmp_path / "out" / "claims.md").read_text().count("## q") == 2


def test_the_console_shows_every_finding_below_its_claims_verdict():
    console = Console(width=150, file=io.StringIO(), highlight=False)
    waiting = replace(GPT, absent=True, verdict=NOT_MEASURED, reason="no runs")
    results = [
        Result(claim_of(EXPONENT), FAILS, "", [GPT, replace(GPT, part="[small]")]),
        Result(claim_of(EXPONENT), NOT_MEASURED, "no runs", [waiting, waiting]),
        Result(claim_of(by_construction="t"), BY_CONSTRUCTION, "t"),
    ]
    console.print(report.console(results))
    lines = console.file.getvalue().splitlines()
    assert "".join(line[0] for line in lines) == "┏┃┡│││├│├│└"  # a rule below each claim
    assert [name.strip() for name in lines[1].strip("┃").split("┃")] == list(pages.COLUMNS[:-1])
    cells = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in lines
        if line.startswith("│")
    ]
    criterion = "1 to 2, fails -1 to 0"
    assert cells == [
        ["q", "", "", "", "", "", "fails"],
        ["", "GPT", "1.235 [1, 1.5]", criterion, "1.1", "6", "holds"],
        ["", "[small]", "1.235 [1, 1.5]", criterion, "1.1", "6", "holds"],
        ["q", "", "no runs", "", "", "", "not measured"],
        ["q", "", "", "", "", "", "by construction"],
    ]
