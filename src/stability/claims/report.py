"""Verdicts as tables: for the console, and as markdown, csv and json beside the runs."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from stability.claims import pages
from stability.claims.evaluate import Finding, Result
from stability.claims.pages import COLUMNS
from stability.claims.verdict import (
    BY_CONSTRUCTION,
    CONDITIONAL,
    FAILS,
    HALF,
    HOLDS,
    NOT_MEASURED,
    Verdict,
)
from stability.results import atomic

STYLES = {
    HOLDS: "green",
    FAILS: "red",
    CONDITIONAL: "yellow",
    HALF: "yellow",
    BY_CONSTRUCTION: "cyan",
}


def console(results: Sequence[Result]) -> Table:
    """Every finding; a claim's own verdict is in its first line, or which runs it waits for."""
    table = Table(*COLUMNS[:-1], expand=False)
    for result in results:
        head = f"[bold]{result.claim.id}[/]"
        if result.waits:
            why = "; ".join(dict.fromkeys(f.reason for f in result.findings))
            table.add_row(head, "", why, "", "", "", _coloured(NOT_MEASURED), end_section=True)
            continue
        whole = _coloured(result.verdict, result.said)
        table.add_row(head, "", "", "", "", "", whole, end_section=not result.findings)
        for i, row in enumerate(pages.rows(result)):
            last = i == len(result.findings) - 1
            cells = [row[c].replace("[", "\\[") for c in COLUMNS[1:-1]]
            table.add_row("", *cells, end_section=last)
    return table


def _coloured(verdict: Verdict, said: str = "") -> str:
    return f"[{STYLES.get(verdict, 'dim')}]{said or verdict}[/]"


def write(results: Sequence[Result], out: Path) -> list[Path]:
    """claims.md, claims.csv and claims.json in a folder; the files that were written."""
    texts = {"md": pages.all_claims(results), "csv": _csv(results), "json": _json(results)}
    out.mkdir(parents=True, exist_ok=True)
    for form, text in texts.items():
        atomic.write_text(out / f"claims.{form}", text)
    return [out / f"claims.{form}" for form in texts]


def _csv(results: Sequence[Result]) -> str:
    """A line per finding."""
    table = io.StringIO()
    names = list(Finding("", "", "", "", None, NOT_MEASURED).facts)
    writer = csv.DictWriter(table, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(f.facts for r in results for f in r.findings)
    return table.getvalue()


def _json(results: Sequence[Result]) -> str:
    """A list of claims, each with its findings."""
    facts = [
        {
            "claim": r.claim.id,
            "statement": pages.one_line(r.claim.statement),
            "source": r.claim.source,
            "verdict": r.verdict,
            "scope": r.claim.scope,
            "reason": r.reason,
            "findings": [f.facts for f in r.findings],
        }
        for r in results
    ]
    return json.dumps(atomic.finite(facts), indent=1, allow_nan=False)
