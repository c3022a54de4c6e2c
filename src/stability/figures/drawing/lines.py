"""Lines over layers, steps or depths: curves with bands, guides, and marks at the panels' edges."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stability.figures.drawing import notes, scales, style
from stability.figures.drawing.layout import Chart, Curve, Layout, Panel, layout
from stability.figures.drawing.page import Page
from stability.figures.drawing.variant_looks import Look, legends
from stability.figures.drawing.variants import part, variant
from stability.results.sweep_rows import SweepRows

MARKS = {
    "x": "first not finite",
    "v": "exactly 0",
    "o": "embedding (hollow)",
    "^": "above the axis",
    "diverged": "diverged",
}
"""Group id of a mark -> its name in the legend."""
THEORY = "theory at infinite width"
FINITE = "two standard deviations of it at this width"
DASHED: dict[str, Any] = {"color": style.INK, "linewidth": 0.9, "linestyle": (0, (3, 2))}
DOTTED: dict[str, Any] = DASHED | {"linewidth": 0.7, "linestyle": (0, (1, 1.5))}
MAX_WORDS = 6
"""Panels side by side that have room for a label of words; beyond, its symbol must do."""
MAX_NAMED = 6
"""Variants above the axis that a note names one by one."""


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
    lines = Lines(layout(rows, chart, width), width)
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
            name = self.layout.chart.x
            ax.set_xlabel(name if self.layout.grid.columns <= MAX_WORDS else name.split()[-1])
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
            scales.layer_x(ax, lengths, bool((self.layout.rows.frame["x"] == 0).any()))
        else:
            scales.whole_ticks(ax.xaxis)
        for turn, curve in enumerate(curves):
            _curve(ax, curve, layers, turn, len(curves))
            line = curve.frame
            bad = line.loc[(line["not_finite"] > 0) & ((line["x"] > 0) | (not layers)), "x"]
            first = bad.tail(1) if panel.quantity.backward else bad.head(1)
            mark_edge(ax, first.to_numpy(float), 1.0, "x", curve.look.color)

    def draw_theory(self, ax: Axes, rows: pd.DataFrame) -> None:
        """Dashed lines, and dotted ones for the range of nets of this width."""
        for _, line in self.layout.curves(rows):
            shown = line[line["x"] > 0] if self.layout.chart.layers else line
            if not np.isfinite(shown["value"]).any():
                continue
            ax.plot(shown["x"], shown["value"], gid=THEORY, **DASHED)
            for bound in ("low", "high") if (shown["high"] > shown["low"]).any() else ():
                ax.plot(shown["x"], shown[bound], gid=FINITE, **DOTTED)

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
        self.page.notes += [*self._above(), *more, *notes.remark_notes(rows)]
        return self.page.close()

    def _legend_of_marks(self) -> list[Any]:
        used = {line.get_gid() for ax in self.page.axes for line in ax.lines}
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

    def _above(self) -> list[str]:
        """A note on variants that leave their panel at the top, and how far."""
        rows = self.layout.rows
        high = pd.concat(
            [p.frame[p.frame["value"] > ax.get_ylim()[1] * (1 + 1e-9)] for ax, p in self.panels]
        ).sort_values("value", ascending=False)
        high = rows.with_frame(high[np.isfinite(high["value"])]).variants()
        said = [
            f"{variant(rows, row) or 'values'} to {row['value']:.3g}" for _, row in high.iterrows()
        ]
        hidden = len(said) - MAX_NAMED
        more = f" and {hidden} more variants" if hidden > 0 else ""
        return [f"Above the axis: {'; '.join(said[:MAX_NAMED])}{more}."] if said else []


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


def _curve(ax: Axes, curve: Curve, layers: bool, turn: int, count: int) -> None:
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
    every = max(1, len(x) // 6, min(count, len(x) // 3))
    ax.plot(
        x, np.where(shown, y, np.nan), markevery=(turn % every, every),
        markeredgecolor="white", markeredgewidth=0.3, **look._asdict(),
    )  # fmt: skip
    if (line["seeds"] > 1).any():
        low, high = (line[c].to_numpy(float) for c in ("low", "high"))
        low = np.maximum(low, ax.get_ylim()[0]) if log else low
        ax.fill_between(x, low, high, color=look.color, alpha=0.18, linewidth=0)
    if log:
        mark_edge(ax, x[(y == 0) & (line["not_finite"].to_numpy() == 0)], 0.03, "v", look.color)


def _embedding(ax: Axes, point: pd.DataFrame, look: Look) -> None:
    """The embedding: the marker of its line, hollow."""
    if (point["value"] > 0).any():
        x = 0.5 if ax.get_xscale() == "log" else 0
        hollow = look._replace(marker=look.marker or "o", linestyle="none")
        ax.plot([x], point["value"], markerfacecolor="none", gid="o", **hollow._asdict())


def mark_edge(ax: Axes, x: Any, height: float, marker: str, colour: str) -> None:
    """Marks at the edge of a panel for what its axis cannot show.

    Args:
        ax: the panel.
        x: where; at most about six of them are drawn.
        height: of the marks, as a share of the panel's height.
        marker: one of `MARKS`.
        colour: that of the line.
    """
    if len(x):
        x = x[:: max(1, len(x) // 6)]
        ax.plot(
            x, np.full(len(x), height), marker, color=colour, markersize=4,
            transform=ax.get_xaxis_transform(), gid=marker, clip_on=False,
        )  # fmt: skip
