"""Lines over layers, steps or depths: curves with bands, guides, and marks at the panels' edges."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stability.figures.drawing import notes, scales, style
from stability.figures.drawing.layout import Chart, Curve, Layout, Panel, is_unsound, layout
from stability.figures.drawing.page import Page
from stability.figures.drawing.rounding import is_rounding
from stability.figures.drawing.variant_looks import Look, legends
from stability.figures.drawing.variants import part
from stability.results.sweep_rows import SweepRows

MARKS = {
    "x": "first not finite",
    "$0$": "exactly 0",
    "o": "embedding (hollow)",
    "*": "spike",
    "diverged": "diverged",
}
"""Group id of a mark -> its name in the legend."""
THEORY = "theory at infinite width"
FINITE = "two standard deviations of it at this width"
DASHED: dict[str, Any] = {"color": style.INK, "linewidth": 1.0, "linestyle": (0, (3, 2))}
DOTTED: dict[str, Any] = DASHED | {"linewidth": 0.8, "linestyle": (0, (1, 1.5))}
MAX_WORDS = 6
"""Panels side by side from which on the symbol of x must do, without its word."""
MANY = 12
"""Points from which on a curve that is not over layers has a mark at some of them only."""
FAINT = 0.35
"""Opacity of a curve that is rounding error, or whose runs diverged and that leaves the axis."""


def draw_lines(
    rows: SweepRows, chart: Chart, width: float, theory: SweepRows | None = None
) -> "Lines":
    """Lay out and draw a page of line panels.

    Args:
        rows: the numbers that `select.over_seeds` returns, with a column ``quantity``.
        chart: what the page shows.
        width: inches.
        theory: numbers of the same columns, drawn dashed, with ``low`` and ``high`` dotted where
            they differ.

    Returns:
        The page, to which a figure can add before it calls `Lines.close`.
    """
    plan = layout(rows, chart, width)
    if theory is not None:  # dashes are the theory's: marks tell its depths apart
        plan = replace(plan, looks=replace(plan.looks, dashed=False))
    lines = Lines(plan, width)
    for place, (ax, panel) in enumerate(lines.panels):
        lines.label(ax, panel, place)
        lines.draw(ax, panel)
        if theory is not None:
            lines.draw_theory(ax, part(theory.frame, panel.facet | panel.where))
    return lines


class Lines:
    """A page of line panels: draws what a layout says."""

    def __init__(self, plan: Layout, width: float) -> None:
        self.layout = plan
        count, columns = len(plan.panels), plan.grid.columns
        self.page = Page(count, columns, width, min_height=plan.min_height)
        if plan.total > count:
            self.page.notes.append(f"First {count} of {plan.total} panels; the csv has all.")

    @property
    def panels(self) -> list[tuple[Axes, Panel]]:
        return list(zip(self.page.axes, self.layout.panels, strict=True))

    def label(self, ax: Axes, panel: Panel, place: int) -> None:
        """Vertical axis, titles, labels and guides; in a grid only at its edges."""
        if panel.quantity.log:
            scales.log_y(ax, panel.limits)
        else:
            ax.set_ylim(*panel.limits)
        if panel.title:
            ax.set_title(panel.title, pad=3)
        if panel.beside:
            ax.text(1.03, 0.5, panel.beside, transform=ax.transAxes, rotation=270, va="center")
        if self.layout.is_lowest(place):
            name, many = self.layout.x_label, self.layout.grid.columns >= MAX_WORDS
            ax.set_xlabel(name.partition(" ")[2] if many else name)
        own = self.layout.has_own_scale(place)
        if own:
            ax.set_ylabel(panel.quantity.label)
        else:
            ax.tick_params(labelleft=False)
        _guides(ax, panel.quantity.guides(panel.frame), named=own)

    def draw(self, ax: Axes, panel: Panel) -> None:
        """The curves, and a cross where each is first not finite."""
        layers = self.layout.chart.layers
        curves = self.layout.curves(panel.frame)
        if layers and curves:
            lengths = [max(1, int(curve.frame["x"].max())) for curve in curves]
            first = min(1.0, float(self.layout.rows.frame["x"].min()))
            scales.layer_x(ax, self.layout.x_scale, lengths, first)
        else:
            scales.whole_ticks(ax.xaxis)
        for turn, curve in enumerate(curves):
            line = curve.frame
            faint = _is_faint(line, panel)
            _curve(ax, curve, layers, turn, len(curves), FAINT if faint else 1.0)
            bad = line.loc[(line["not_finite"] > 0) & ((line["x"] > 0) | (not layers)), "x"]
            first = bad.tail(1) if panel.quantity.backward else bad.head(1)
            mark_edge(ax, first.to_numpy(float), 1.0, "x", curve.look.color)
            if faint:
                mark_exits(ax, line, curve.look.color)

    def draw_theory(self, ax: Axes, rows: pd.DataFrame) -> None:
        """Dashed lines, and dotted ones for the range of nets of this width."""
        for look, line in self.layout.curves(rows):
            colour = {"color": style.darker(look.color)}
            shown = line[line["x"] > 0] if self.layout.chart.layers else line
            if not np.isfinite(shown["value"]).any():
                continue
            ax.plot(shown["x"], shown["value"], gid=THEORY, **DASHED | colour)
            for bound in ("low", "high") if (shown["high"] > shown["low"]).any() else ():
                ax.plot(shown["x"], shown[bound], gid=FINITE, **DOTTED | colour)

    def close(self, centre: str, *more: str) -> Figure:
        """Legends for what varies and for the marks in use, and the notes.

        Args:
            centre: what a line is over seeds, such as ``geometric mean``.
            more: further notes.
        """
        rows = self.layout.rows
        self.page.legends = [*legends(rows, self.layout.looks), self._legend_of_marks()]
        if "when" in rows.frame and rows.frame["when"].nunique() == 1:
            self.page.notes.append(f"{str(rows.frame['when'].iloc[0]).capitalize()}.")
        self.page.notes += notes.seed_note(rows, centre) + notes.outcome_notes(rows)
        self.page.notes += [*self._faint(), *more, *self._theory(), *notes.remark_notes(rows)]
        return self.page.close()

    def _legend_of_marks(self) -> list[Any]:
        used = self._used()
        row = [
            Line2D(
                [], [], marker="x" if gid == "diverged" else gid, linestyle="none",
                color=style.GREY, markersize=4, label=text,
                markerfacecolor="none" if gid == "o" else style.GREY,
            )
            for gid, text in MARKS.items() if gid in used
        ]  # fmt: skip
        looks = {THEORY: DASHED, FINITE: DOTTED}
        return row + [Line2D([], [], label=t, **look) for t, look in looks.items() if t in used]

    def _used(self) -> set[object]:
        """Group ids of what is drawn."""
        return {line.get_gid() for ax in self.page.axes for line in ax.lines}

    def _theory(self) -> list[str]:
        """What a single net may differ by from the theory, where nothing drawn says it."""
        one = int(self.layout.rows.frame["runs"].max()) == 1
        if THEORY not in self._used() or FINITE in self._used() or not one:
            return []
        return ["One seed: how far a net of this width may lie from the theory is not derived."]

    def _faint(self) -> list[str]:
        """A note on variants that are drawn faint, and why."""
        panels = self.layout.panels
        bad = [(p, c.frame) for p in panels for c in self.layout.curves(p.frame)]
        bad = [(p, line) for p, line in bad if _is_faint(line, p)]
        if not bad:
            return []
        why = []
        if any(p.quantity.backward and is_rounding(line).any() for p, line in bad):
            why.append("rounding error of a fused attention kernel")
        if any((line["diverged"] >= line["runs"]).all() for _, line in bad):
            why.append("diverged")
        return [f"Faint, and not counted for the axis: {' or '.join(why)}."]


def _is_faint(line: pd.DataFrame, panel: Panel) -> bool:
    """Whether a curve is rounding error, or leaves the axis and belongs to runs that diverged."""
    unsound = is_unsound(line, panel.quantity)
    low, high = panel.limits
    outside = (line["value"] > high) | ((line["value"] < low) & (line["x"] > 0))
    rounding = panel.quantity.backward and is_rounding(line).any()
    return bool(unsound.any() and (rounding or outside.any()))


def _guides(ax: Axes, guides: Sequence[tuple[float, str]], named: bool) -> None:
    low, high = ax.get_ylim()
    for value, text in guides:
        if low < value < high:
            ax.axhline(value, color=style.INK, linewidth=0.7, linestyle=(0, (1, 1.5)))
            name = ax.annotate(
                text if named else "", (0, value), xycoords=("axes fraction", "data"),
                xytext=(2, 1.5), textcoords="offset points", va="bottom", fontsize=6,
                bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.3},
                zorder=1.5,  # behind the data
            )  # fmt: skip
            name.set_in_layout(False)


def _curve(ax: Axes, curve: Curve, layers: bool, turn: int, count: int, opacity: float) -> None:
    """One curve with its band. What a log axis cannot show is marked at the panel's edge.

    The `count` curves of a panel take turns with their markers, as they may coincide.
    """
    look, line = curve
    log = ax.get_yscale() == "log"
    if layers:
        _embedding(ax, line[line["x"] == 0], look)
        line = line[line["x"] > 0]
    x, y = line["x"].to_numpy(float), line["value"].to_numpy(float)
    shown = np.isfinite(y) & ((y > 0) | (not log))
    every = max(1, len(x) // 6, min(count, len(x) // 3)) if layers or len(x) > MANY else 1
    ax.plot(
        x, np.where(shown, y, np.nan), markevery=(turn % every, every), alpha=opacity,
        markeredgecolor="white", markeredgewidth=0.3, **look._asdict(),
    )  # fmt: skip
    if (line["seeds"] > 1).any():
        low, high = (line[c].to_numpy(float) for c in ("low", "high"))
        low = np.maximum(low, ax.get_ylim()[0]) if log else low
        ax.fill_between(x, low, high, color=look.color, alpha=0.18 * opacity, linewidth=0)
    if log:
        mark_edge(ax, x[(y == 0) & (line["not_finite"].to_numpy() == 0)], 0.04, "$0$", look.color)


def _embedding(ax: Axes, point: pd.DataFrame, look: Look) -> None:
    """The embedding: the marker of its line, hollow; off the axis, at its edge with its value."""
    if not (point["value"] > 0).any():
        return
    x = 0.5 if ax.get_xscale() == "log" else 0
    low, high = ax.get_ylim()
    value = float(point["value"].iloc[0])
    hollow = look._replace(marker=look.marker or "o", linestyle="none")
    inside = float(np.clip(value, low, high))
    ax.plot(
        [x], [inside], markerfacecolor="none", gid="o", clip_on=inside == value, **hollow._asdict()
    )
    if inside != value and ax.get_yscale() == "log":
        _exit(ax, x, value, above=value > high, colour=look.color)


def mark_exits(ax: Axes, line: pd.DataFrame, colour: str) -> None:
    """An arrow where a curve leaves the axis, with the extreme value that it reaches there."""
    low, high = ax.get_ylim()
    inner = line[np.isfinite(line["value"].astype(float)) & (line["value"] > 0)]
    for out, above in ((inner[inner["value"] > high], True), (inner[inner["value"] < low], False)):
        if len(out):
            y = out["value"].astype(float)
            at = y.idxmax() if above else y.idxmin()
            _exit(ax, float(out.loc[at, "x"]), float(y[at]), above, colour)


def _exit(ax: Axes, x: float, value: float, above: bool, colour: str) -> None:
    """An arrow at the edge of a panel and a value beside it; below each other where they are many.

    A value that is written there already is not written again.
    """
    arrow = r"$\uparrow$" if above else r"$\downarrow$"
    text = f"{arrow}{scales.short(float(f'{value:.1g}'))}"
    have = [t for t in ax.texts if t.get_gid() == arrow]
    if any(t.get_text() == text for t in have):
        return
    left, right = ax.transAxes.inverted().transform(ax.transData.transform([(x, 1), (x, 1)]))[:, 0]
    down = -7.5 * len(have) - 2
    ax.annotate(
        text, (x, 1.0 if above else 0.0), xycoords=ax.get_xaxis_transform(), gid=arrow,
        xytext=(-2 if right > 0.5 else 2, down if above else -down), textcoords="offset points",
        ha="right" if left > 0.5 else "left", va="top" if above else "bottom", fontsize=6,
        color=colour, zorder=4,
        bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.3},
    ).set_in_layout(False)  # fmt: skip


def mark_edge(ax: Axes, x: Any, height: float, marker: str, colour: str, gid: str = "") -> None:
    """Marks at the edge of a panel for what its axis cannot show.

    Args:
        ax: the panel.
        x: where; at most about six of them are drawn.
        height: of the marks, as a share of the panel's height.
        marker: one of `MARKS`.
        colour: that of the line.
        gid: its key in `MARKS`, where that is not the marker.
    """
    if len(x):
        x = x[:: max(1, len(x) // 6)]
        ax.plot(
            x, np.full(len(x), height), linestyle="none", marker=marker, color=colour, markersize=4,
            transform=ax.get_xaxis_transform(), gid=gid or marker, clip_on=False,
        )  # fmt: skip
