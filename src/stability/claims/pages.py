"""Verdicts as markdown, and the place in a page where they lie. The layout is `pages.md.jinja`."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from stability.claims.evaluate import Finding, Result
from stability.claims.verdict import (
    BY_CONSTRUCTION,
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    NOT_MEASURED,
    Verdict,
)
from stability.results.schema import FIGURES_FOLDER

if TYPE_CHECKING:
    from jinja2 import Template

COLUMNS = ("claim", "setting", "measured", "criterion", "theory", "seeds", "verdict", "figure")
START, END = "<!-- result: python -m stability.claims --pages -->", "<!-- end -->"
"""The command writes between these lines of a page, and nowhere else in it."""


def all_claims(results: Sequence[Result]) -> str:
    """A page of its own: a table of verdicts, and below it each claim with its findings."""
    return _render("all_claims", results)


def section(result: Result) -> str:
    """A claim's verdict and findings, for the experiment's page."""
    return _render("section", result)


def report(results: Sequence[Result], drawn: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Verdicts for a page of prose: a table, then each claim with its figure; identities last.

    Args:
        results: what was found.
        drawn: claim -> path of its figure from the page.
        own: experiment -> path of its own page from the page, where it has one.
    """
    return _render("report", sorted(results, key=_is_identity), drawn, own)


def _is_identity(result: Result) -> bool:
    return result.verdict == BY_CONSTRUCTION or result.claim.identity


def _render(macro: str, *given: object) -> str:
    text: str = getattr(_template().module, macro)(*given)
    return text


@cache
def _template() -> "Template":
    """The layout; jinja2 is imported here since most commands write no page."""
    import jinja2

    files = jinja2.FileSystemLoader(Path(__file__).parent)
    layout = jinja2.Environment(
        loader=files, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters = (cell, one_line, columns, cells, judged_by, by_verdict)
    layout.filters |= {filter.__name__: filter for filter in filters}
    return layout.get_template("pages.md.jinja")


def cell(text: str) -> str:
    """The text with `|` escaped, for a cell of a markdown table."""
    return text.replace("|", "\\|")


def one_line(text: str) -> str:
    return " ".join(text.split())


def rounded(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.4g}"


def measured(finding: Finding) -> str:
    """Value and interval: ``1.02 [0.99, 1.05]``."""
    if finding.low is None:
        return rounded(finding.value)
    if finding.count is not None:
        ends = f"[{rounded(finding.low)}, {rounded(finding.high)}]"
        return f"{finding.count} of {finding.seeds} seeds {ends}"
    return f"{rounded(finding.value)} [{rounded(finding.low)}, {rounded(finding.high)}]"


def rows(result: Result) -> list[dict[str, str]]:
    """A row per finding, by `COLUMNS`."""
    figure = result.claim.figure
    return [
        {
            "claim": result.claim.id,
            "setting": f.label,
            "measured": " ".join(filter(None, (measured(f), f"({f.reason})" if f.reason else ""))),
            "criterion": f.asked,
            "theory": rounded(f.theory),
            "seeds": str(f.seeds or ""),
            "verdict": f.verdict,
            "figure": f"{f.sweep}/{FIGURES_FOLDER}/{figure}.png" if figure else "",
        }
        for f in result.findings
    ]


def columns(result: Result) -> list[str]:
    """The columns in which a claim's findings say something."""
    return [name for name in COLUMNS[1:] if any(row[name] for row in rows(result))]


def cells(result: Result) -> list[list[str]]:
    """A line per finding, in the order of `columns`."""
    return [[row[name] for name in columns(result)] for row in rows(result)]


def judged_by(result: Result) -> str:
    """What a verdict rests on, which may be narrower than the statement: parts and criteria."""
    if result.verdict == BY_CONSTRUCTION:
        return "a test"
    judged = {f.part: _asked(f) for f in result.findings if f.criterion}
    return "; ".join(": ".join(filter(None, pair)) for pair in judged.items())


def _asked(finding: Finding) -> str:
    """A criterion, with what else could have held in its place."""
    return ", or ".join(filter(None, (finding.asked, finding.otherwise)))


def by_verdict(result: Result) -> list[str]:
    """Which parts hold and which do not, a text for each verdict; settings by name if few."""
    counted = [f for f in result.findings if f.criterion]
    if result.claim.together or not counted or result.verdict == NOT_MEASURED:
        return [result.reason] if result.reason else []
    said: list[str] = []
    for verdict in (HOLDS, FAILS, INCONCLUSIVE, NOT_MEASURED):
        parts = dict.fromkeys(f.part for f in counted if f.verdict == verdict)
        if parts:
            said.append(f"{verdict}: {'; '.join(_settings(p, verdict, counted) for p in parts)}")
    return [*(said if len(said) > 1 else []), *result.departures]


def _settings(part: str, verdict: Verdict, counted: Sequence[Finding]) -> str:
    """A part and those of its settings that have this verdict."""
    every = [f.setting for f in counted if f.part == part]
    mine = [f.setting for f in counted if f.part == part and f.verdict == verdict]
    if mine == every:
        count = "both" if len(every) == 2 else f"all {len(every)}"
        return part + (f" ({count} settings)" if len(every) > 1 else "")
    named = ", or ".join(mine) if len(mine) <= 4 else f"{len(mine)} of {len(every)} settings"
    return f"{part} ({named})"


def fill(page: str, text: str) -> str:
    """A page with this text between `START` and `END`; unchanged where it has no such place."""
    if held(page) is None:
        return page
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{text}{END}{rest.partition(END)[2]}"


def held(page: str) -> str | None:
    """What a page holds between `START` and the `END` behind it; None where it lacks either."""
    _, start, rest = page.partition(START)
    inside, end, _ = rest.partition(END)
    return inside if start and end else None


def verdicts(page: str) -> dict[str, str]:
    """Claim -> verdict as `report` wrote them into a page's table; empty where there is none."""
    lines = [line for line in (held(page) or "").splitlines() if line.startswith("| [")]
    table = [line.strip("| ").split(" | ") for line in lines]
    return {row[0].partition("](#")[0].strip("["): row[-1].strip("*") for row in table}
