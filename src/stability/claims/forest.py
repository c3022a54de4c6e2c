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

from stability.claims import labels
from stability.claims.criterion import Criterion
from stability.claims.evaluate import Finding
from stability.claims.measures import Settings
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
        what = labels.label(finding.measure, _without_token(finding))
        panels.setdefault((what, finding.criterion), []).append(finding)
    groups = [(group, _names(group)) for group in panels.values()]
    heights = [
        HEAD + 0.12 * _lines(_meaning(group)) + LINE * sum(map(_lines, names))
        for group, names in groups
    ]
    figure = NotebookFigure(figsize=(width, sum(heights) + 0.25), layout="constrained")
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (group, names) in zip(axes, groups, strict=True):
        _panel(ax, group, names)
    key = _key(shown)
    figure.legend(handles=key, loc="outside lower center", ncols=len(key), frameon=False)
    return figure


def _finite(*values: float | str | None) -> list[float]:
    """The values that are finite numbers."""
    return [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]


def _names(group: Sequence[Finding]) -> list[str]:
    """Names of a panel's lines: the settings, with the part where there are several parts."""
    one = len({f.part for f in group}) == 1
    return [textwrap.fill(f.setting if one and f.setting else f.label, 46) for f in group]


def _lines(text: str) -> int:
    return text.count("\n") + 1


def _panel(ax: Axes, group: Sequence[Finding], names: Sequence[str]) -> None:
    admits = _admitted(group[0])
    values = [v for f in group for v in _finite(f.value, f.low, f.high, f.theory)]
    values += _finite(*admits, *_failing(group[0]))
    least, most = min(values), max(values)
    span = most - least or abs(least) or 1.0
    if least > 0 and most / least > 30:
        ax.set_xscale("log")
        ax.set_xlim(least / 1.2, most * 1.2)
    else:
        ax.set_xlim(least - 0.06 * span, most + 0.06 * span)
        ax.xaxis.set_major_locator(MaxNLocator(6))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.5g}"))
    for ends, colour in ((admits, style.PALE), (_failing(group[0]), style.FAILING)):
        if ends:
            ax.axvspan(*np.clip(ends, *ax.get_xlim()), color=colour, zorder=0, linewidth=0)
        for end in _finite(*ends):
            ax.axvline(end, color=style.GREY, linewidth=0.7)
    below = np.cumsum([_lines(name) for name in names])
    places = [end - _lines(name) / 2 for end, name in zip(below, names, strict=True)]
    for y, finding in zip(places, group, strict=True):
        _mark(ax, y, finding)
    ax.set_yticks(places, names, fontsize=6.5)
    ax.set_ylim(below[-1], 0)
    ax.grid(axis="y", visible=False)
    if len({f.part for f in group}) == 1 and any(f.setting for f in group):
        ax.set_title(group[0].part, pad=3)
    ax.set_xlabel(_meaning(group), fontsize=style.SMALL)


def _admitted(finding: Finding) -> tuple[float, ...]:
    """Both ends of the range that the criterion admits; empty where there is none."""
    admits = finding.criterion.admits if finding.criterion else None
    return (admits.low, admits.high) if admits else ()


def _failing(finding: Finding) -> tuple[float, ...]:
    """Both ends of the range in which a criterion fails; empty where that is all it lacks."""
    fails = finding.criterion.fails if finding.criterion else None
    return (fails.low, fails.high) if fails else ()


def _without_token(finding: Finding) -> Settings:
    """The settings of a measure but for the token, which the names of a panel's lines say."""
    return {name: value for name, value in finding.given.items() if name != "token"}


def _meaning(group: Sequence[Finding]) -> str:
    """What the numbers are, in symbols of the field, and what is asked of them."""
    first = group[0]
    alike = all(f.given == first.given for f in group)
    given = first.given if alike else _without_token(first)
    asked = f"holds: {first.criterion}" if first.criterion else "no criterion: reported"
    what = textwrap.wrap(labels.label(first.measure, given), 90, break_long_words=False)
    return "\n".join([*what, asked])


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
        found.append(Patch(color=style.PALE, label="holds here"))
    if any(_failing(f) for f in findings):
        found.append(Patch(color=style.FAILING, label="fails here"))
    return found
