"""Verdicts as tables: for the console, as markdown, csv and json, and for an experiment's page."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from stability.claims.evaluate import Finding, Result
from stability.claims.sweep_data import FIGURES
from stability.claims.verdict import (
    BY_CONSTRUCTION,
    CONDITIONAL,
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    NOT_MEASURED,
)
from stability.results import atomic

COLUMNS = ("claim", "setting", "measured", "criterion", "theory", "seeds", "verdict", "figure")
STYLES = {HOLDS: "green", FAILS: "red", CONDITIONAL: "yellow", BY_CONSTRUCTION: "cyan"}
START, END = "<!-- result: python -m stability.claims --pages -->", "<!-- end -->"
"""Between these lines of an experiment's page stands what was measured; no hand writes there."""


def number(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.4g}"


def measured(finding: Finding) -> str:
    """Value and interval: ``1.02 [0.99, 1.05]``."""
    if finding.low is None:
        return number(finding.value)
    return f"{number(finding.value)} [{number(finding.low)}, {number(finding.high)}]"


def rows(result: Result) -> list[dict[str, str]]:
    """One row per finding; a claim without findings has one all the same."""
    claim = result.claim
    if not result.findings:
        blank = dict.fromkeys(COLUMNS, "")
        return [blank | {"claim": claim.id, "verdict": result.verdict, "setting": result.reason}]
    return [
        {
            "claim": claim.id,
            "setting": f.where,
            "measured": " ".join(filter(None, (measured(f), f"({f.reason})" if f.reason else ""))),
            "criterion": f.criterion,
            "theory": number(f.theory),
            "seeds": str(f.seeds or ""),
            "verdict": f.verdict,
            "figure": f"{f.sweep}/{FIGURES}/{claim.figure}.png" if claim.figure else "",
        }
        for f in result.findings
    ]


def console(results: Sequence[Result]) -> Table:
    """Every finding; a claim's own verdict stands in its first line, its need of runs beside it."""
    table = Table(*COLUMNS[:-1], expand=False)
    for result in results:
        head = f"[bold]{result.claim.id}[/]"
        if result.findings and all(f.absent for f in result.findings):
            why = "; ".join(dict.fromkeys(f.reason for f in result.findings))
            table.add_row(head, "", why, "", "", "", "[dim]not measured[/]", end_section=True)
            continue
        whole = f"[{STYLES.get(result.verdict, 'dim')}]{result.verdict}[/]"
        table.add_row(head, "", "", "", "", "", whole, end_section=not result.findings)
        for i, row in enumerate(rows(result) if result.findings else ()):
            last = i == len(result.findings) - 1
            cells = [row[c].replace("[", "\\[") for c in COLUMNS[1:-1]]
            table.add_row("", *cells, end_section=last)
    return table


def markdown(results: Sequence[Result]) -> str:
    """A table of verdicts, and below it each claim with its findings."""
    lines = ["# Claims, measured", "", *_line(("claim", "verdict", "where")), *_rule(3)]
    for r in results:
        lines += _line((f"[{r.claim.id}](#{r.claim.id})", r.verdict, r.reason))
    for r in results:
        lines += ["", f"## {r.claim.id}", "", _sentence(r.claim.statement), "", *section(r)]
    return "\n".join(lines) + "\n"


def section(result: Result) -> list[str]:
    """A claim's verdict and findings as lines of markdown."""
    reason = f": {result.reason}" if result.reason else ""
    lines = [f"**{result.verdict}**{reason}"]
    if result.findings:
        names = [c for c in COLUMNS[1:] if any(row[c] for row in rows(result))]
        lines += ["", *_line(names), *_rule(len(names))]
        for row in rows(result):
            lines += _line([row[c] for c in names])
    return lines


def report(
    results: Sequence[Result], drawn: Mapping[str, str], pages: Mapping[str, str]
) -> list[str]:
    """Verdicts for a page of prose: a table, then each claim with its figure.

    Args:
        results: what was found.
        drawn: claim -> path of its figure from the page.
        pages: experiment -> path of its own page from the page, where it has one.
    """
    lines = [*_line(("claim", "what it says", "judged by", "verdict")), *_rule(4)]
    for r in results:
        link = f"[{r.claim.id}](#{r.claim.id})"
        lines += _line((link, _sentence(r.claim.statement), _judged_by(r), f"**{r.verdict}**"))
    for r in results:
        name = r.claim.id
        lines += ["", f"### {name}", "", _sentence(r.claim.statement), "", f"**{r.verdict}**"]
        lines += ["", *points] if (points := _where(r)) else []
        if r.claim.name in pages:
            page = f"[experiments/{r.claim.name}.md]({pages[r.claim.name]})"
            lines += ["", f"Derivation, command and all numbers: {page}."]
        if name in drawn:
            lines += ["", f"![{name}: what was measured, and the criterion]({drawn[name]})"]
    return lines


def _judged_by(result: Result) -> str:
    """What a verdict rests on, which may be narrower than the statement: parts and criteria."""
    if result.verdict == BY_CONSTRUCTION:
        return "a test"
    judged = {f.part: f.criterion for f in result.findings if f.criterion}
    return "; ".join(": ".join(filter(None, pair)) for pair in judged.items())


def _where(result: Result) -> list[str]:
    """Which parts hold and which do not, a line for each verdict; settings by name if few."""
    counted = [f for f in result.findings if f.criterion]
    if result.claim.together or not counted or result.verdict == NOT_MEASURED:
        return [f"- {result.reason}"] if result.reason else []
    lines = []
    for verdict in (HOLDS, FAILS, INCONCLUSIVE, NOT_MEASURED):
        parts = dict.fromkeys(f.part for f in counted if f.verdict == verdict)
        if parts:
            some = [_settings(part, verdict, counted) for part in parts]
            lines.append(f"- {verdict}: {'; '.join(some)}")
    return lines if len(lines) > 1 else []


def _settings(part: str, verdict: str, counted: Sequence[Finding]) -> str:
    """A part and those of its settings that have this verdict."""
    of = [f.setting for f in counted if f.part == part]
    mine = [f.setting for f in counted if f.part == part and f.verdict == verdict]
    if mine == of:
        every = "both" if len(of) == 2 else f"all {len(of)}"
        return part + (f" ({every} settings)" if len(of) > 1 else "")
    few = ", or ".join(mine) if len(mine) <= 4 else f"{len(mine)} of {len(of)} settings"
    return f"{part} ({few})"


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _line(cells: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"]


def _rule(count: int) -> list[str]:
    return ["|" + " --- |" * count]


def write(results: Sequence[Result], out: Path) -> list[Path]:
    """claims.md, claims.csv and claims.json in a folder; the files that were written."""
    table = io.StringIO()
    writer = csv.DictWriter(
        table, list(asdict(Finding("", "", "", "", "", ""))), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(asdict(f) for r in results for f in r.findings)
    facts: list[dict[str, Any]] = [
        {
            "claim": r.claim.id,
            "statement": _sentence(r.claim.statement),
            "source": r.claim.source,
            "verdict": r.verdict,
            "reason": r.reason,
            "findings": [asdict(f) for f in r.findings],
        }
        for r in results
    ]
    json_text = json.dumps(atomic.finite(facts), indent=1, allow_nan=False)
    texts = {"md": markdown(results), "csv": table.getvalue(), "json": json_text}
    out.mkdir(parents=True, exist_ok=True)
    for form, text in texts.items():
        atomic.write_text(out / f"claims.{form}", text)
    return [out / f"claims.{form}" for form in texts]


def fill(page: str, lines: Sequence[str]) -> str:
    """A page with these lines between `START` and `END`; unchanged where it has no such place."""
    if held(page) is None:
        return page
    before, _, rest = page.partition(START)
    return "\n".join([before + START, *lines, END]) + rest.partition(END)[2]


def held(page: str) -> str | None:
    """What a page holds between `START` and the `END` behind it; None where it lacks either."""
    _, start, rest = page.partition(START)
    inside, end, _ = rest.partition(END)
    return inside if start and end else None
