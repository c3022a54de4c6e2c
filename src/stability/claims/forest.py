"""A forest plot of a claim's findings: values, intervals and theory beside the criterion.

For the page of verdicts. A panel holds the findings of one measure and one criterion, a line each.
"""

import math
import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from stability.claims.criterion import Criterion
from stability.claims.evaluate import Finding
from stability.claims.measures import measures
from stability.claims.verdict import FAILS, HOLDS, INCONCLUSIVE, NOT_MEASURED, REPORTED, Verdict
from stability.figures.drawing import style
from stability.figures.drawing.notebook import NotebookFigure
from stability.figures.drawing.select import CannotDraw

LOOKS: dict[Verdict, tuple[str, str]] = {
    HOLDS: ("o", style.COLOURS[0]),
    FAILS: ("X", style.COLOURS[1]),
    INCONCLUSIVE: ("D", style.COLOURS[4]),
    REPORTED: ("s", style.GREY),
}
LINE, HEAD = 0.17, 0.5
"""Inches of a finding, and of a panel's axis and label."""


@style.drawn
def draw(findings: Sequence[Finding], width: float = 6.75) -> Figure:
    """A panel per measure and criterion. Findings without a number, or not measured, are left out.

    Args:
        findings: of one claim.
        width: inches.

    Raises:
        CannotDraw: no finding has a number.
    """
    shown = [f for f in findings if _finite(f.value) and f.verdict != NOT_MEASURED]
    if not shown:
        raise CannotDraw("no finding has a number")
    panels: dict[tuple[str, Criterion | None], list[Finding]] = {}
    for finding in shown:
        panels.setdefault((finding.measure, finding.criterion), []).append(finding)
    groups = [(group, _labels(group)) for group in panels.values()]
    heights = [
        HEAD + 0.12 * _lines(_meaning(group[0])) + LINE * sum(map(_lines, labels))
        for group, labels in groups
    ]
    figure = NotebookFigure(figsize=(width, sum(heights) + 0.25), layout="constrained")
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (group, labels) in zip(axes, groups, strict=True):
        _panel(ax, group, labels)
    key = _key(shown)
    figure.legend(handles=key, loc="outside lower center", ncols=len(key), frameon=False)
    return figure


def _finite(*values: float | str | None) -> list[float]:
    """The values that are finite numbers."""
    return [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]


def _labels(group: Sequence[Finding]) -> list[str]:
    """Names of a panel's lines: the settings, with the part where there are several parts."""
    one = len({f.part for f in group}) == 1
    return [textwrap.fill(f.setting if one and f.setting else f.label, 46) for f in group]


def _lines(label: str) -> int:
    return label.count("\n") + 1


def _panel(ax: Axes, group: Sequence[Finding], labels: Sequence[str]) -> None:
    admits = _admitted(group[0])
    values = [v for f in group for v in _finite(f.value, f.low, f.high, f.theory)]
    values += _finite(*admits)
    least, most = min(values), max(values)
    span = most - least or abs(least) or 1.0
    if least > 0 and most / least > 30:
        ax.set_xscale("log")
        ax.set_xlim(least / 1.2, most * 1.2)
    else:
        ax.set_xlim(least - 0.06 * span, most + 0.06 * span)
        ax.xaxis.set_major_locator(MaxNLocator(6))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.5g}"))
    if admits:
        ax.axvspan(*np.clip(admits, *ax.get_xlim()), color=style.PALE, zorder=0, linewidth=0)
        for end in _finite(*admits):
            ax.axvline(end, color=style.GREY, linewidth=0.7)
    ends = np.cumsum([_lines(label) for label in labels])
    places = [end - _lines(label) / 2 for end, label in zip(ends, labels, strict=True)]
    for y, finding in zip(places, group, strict=True):
        _mark(ax, y, finding)
    ax.set_yticks(places, labels, fontsize=6.5)
    ax.set_ylim(ends[-1], 0)
    ax.grid(axis="y", visible=False)
    if len({f.part for f in group}) == 1 and any(f.setting for f in group):
        ax.set_title(group[0].part, pad=3)
    ax.set_xlabel(_meaning(group[0]), fontsize=style.SMALL)


def _admitted(finding: Finding) -> tuple[float, ...]:
    """Both ends of the range that the criterion admits; empty where there is none."""
    admits = finding.criterion.admits if finding.criterion else None
    return (admits.low, admits.high) if admits else ()


def _meaning(finding: Finding) -> str:
    """What the number is, in its measure's own words, and what is asked of it."""
    what = measures()[finding.measure].meaning.rstrip(".")
    if finding.count is not None:
        what = f"Share of seeds: {what[0].lower()}{what[1:]}"
    asked = f"criterion: {finding.criterion}" if finding.criterion else "no criterion: reported"
    return f"{textwrap.fill(what.replace('`', ''), 66)}\n{asked}"


def _mark(ax: Axes, y: float, finding: Finding) -> None:
    marker, colour = LOOKS.get(finding.verdict, LOOKS[REPORTED])
    ends = _finite(finding.low, finding.high)
    ax.plot(ends, [y] * len(ends), color=colour, linewidth=1.2)
    ax.plot(_finite(finding.value), [y], marker, color=colour, markersize=4.5)
    for theory in _finite(finding.theory):
        ax.plot([theory], [y], "|", color=style.INK, markersize=9, markeredgewidth=1.2)


def _key(findings: Sequence[Finding]) -> list[Line2D | Patch]:
    seen = {f.verdict for f in findings}
    found: list[Line2D | Patch] = [
        Line2D([], [], marker=marker, color=colour, markersize=4.5, label=name)
        for name, (marker, colour) in LOOKS.items()
        if name in seen
    ]
    if any(_finite(f.theory) for f in findings):
        mark = Line2D([], [], marker="|", color=style.INK, linestyle="none", label="theory")
        mark.set_markersize(9)
        found.append(mark)
    if any(_admitted(f) for f in findings):
        found.append(Patch(color=style.PALE, label="criterion"))
    return found
