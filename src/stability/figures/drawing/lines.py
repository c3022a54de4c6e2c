"""Lines over layers, steps or depths: a panel per facet, bands, marks for what is no number."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stability.figures.drawing import panels, scales, style
from stability.figures.drawing.roles import facets, key, marks, part, roles, title

Guides = Callable[[pd.DataFrame], list[tuple[float, str]]]

BLOCKS = r"blocks passed $l$"
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


@dataclass(frozen=True)
class Quantity:
    """What a panel shows: its axis, and lines that stand for known limits."""

    label: str
    log: bool = True
    limits: tuple[float, float] | None = None
    guides: Guides = lambda rows: []
    backward: bool = False
    """Whether it is made from the last block to the first."""


@dataclass(frozen=True)
class Cell:
    """One panel: where it stands and which rows it shows."""

    ax: Axes
    rows: pd.DataFrame
    facet: dict[str, Any]
    where: dict[str, Any]
    quantity: str


class Lines:
    """A page of line panels drawn from the frame that `select.over_seeds` returns.

    Args:
        frame: axes, ``quantity``, the panel columns, ``x``, ``value``, ``low``, ``high``, ...
        quantities: what each value of ``quantity`` means.
        x: the label of the horizontal axis.
        across: the column whose values stand side by side.
        down: the column whose values stand below each other, if any.
        width: inches.
        without: axes that are no lines (the one on x).
        layers: x counts blocks passed; x = 0, the embedding, is a mark of its own.
        theory: rows of the same axes, panel columns, ``x`` and ``value``, drawn dashed, with
            ``low`` and ``high`` dotted where they differ.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        quantities: dict[str, Quantity],
        x: str,
        across: str,
        down: str | None = None,
        width: float = 6.75,
        without: Sequence[str] = (),
        layers: bool = False,
        theory: pd.DataFrame | None = None,
    ) -> None:
        order = pd.CategoricalDtype(list(quantities))
        self.frame = frame = frame.assign(quantity=frame["quantity"].astype(order))
        self.quantities, self.theory = quantities, theory
        self.layers, self.x = layers, x
        self.roles = roles(frame, without)
        self.looks = marks(frame, self.roles)
        below = facets(frame, [down] if down else [])
        groups = list(product(facets(frame, self.roles.facets), below))
        side = facets(frame, [across])
        shared = len(quantities) == 1
        self.columns, self.grid, self.turned = _arrange(width, len(side), len(groups), shared)
        pairs = [(g, a) for a, g in product(side, groups)] if self.turned else product(groups, side)
        every = [(facet, {**d, **a}) for (facet, d), a in pairs]
        shown = every[: panels.MAX_PANELS // self.columns * self.columns]
        least = 1.75 if not self.grid else 1.5 if len(shown) <= 3 * self.columns else 1.25
        self.page = panels.Page(len(shown), self.columns, width, least=least)
        if len(every) > len(shown):
            self.page.notes.append(f"First {len(shown)} of {len(every)} panels; the csv has all.")
        self.cells: list[Cell] = []
        for ax, (facet, where) in zip(self.page.axes, shown, strict=True):
            name = str(where.get("quantity", frame["quantity"].iloc[0]))
            cell = Cell(ax, part(frame, facet | where), facet, where, name)
            self._panel(cell, across, self._limits(name, {d: where[d] for d in below[0]}))
            self.cells.append(cell)

    def _limits(self, name: str, below: dict[str, Any]) -> tuple[float, float]:
        """Limits of a quantity in all panels of a row; a guide within six decades belongs to them.

        Variants of which every run diverged do not count, where there are others.
        """
        quantity = self.quantities[name]
        if quantity.limits:
            return quantity.limits
        rows = part(self.frame, {"quantity": name} | below)
        rows = sound if len(sound := rows[rows["diverged"] < rows["runs"]]) else rows
        values = rows[["value", "low", "high"]]
        low, high = scales.log_limits(values)
        near = [v for v, _ in quantity.guides(rows) if low / 1e6 < v < high * 1e6]
        return scales.log_limits(values, near)

    def _panel(self, cell: Cell, across: str, limits: tuple[float, float]) -> None:
        ax, quantity = cell.ax, self.quantities[cell.quantity]
        if quantity.log:
            scales.log_y(ax, limits)
        else:
            ax.set_ylim(*limits)
        first = self._heads(cell, across)
        self._guides(ax, quantity.guides(cell.rows), first)
        lines = self.lines_of(cell.rows)
        if self.layers and lines:
            lengths = [max(1, int(line["x"].max())) for _, _, line in lines]
            scales.layer_x(ax, lengths, bool((self.frame["x"] == 0).any()))
        else:
            scales.whole_ticks(ax.xaxis)
        for i, (hue, dash, line) in enumerate(lines):
            self._line(ax, line, self.looks(hue, dash), i, len(lines))
            bad = line.loc[(line["not_finite"] > 0) & ((line["x"] > 0) | (not self.layers)), "x"]
            first = bad.tail(1) if quantity.backward else bad.head(1)
            edge(ax, first.to_numpy(float), 1.0, "x", self.looks(hue, dash)["color"])
        if self.theory is not None:
            for _, _, line in self.lines_of(part(self.theory, cell.facet | cell.where)):
                line = line[line["x"] > 0] if self.layers else line
                if not np.isfinite(line["value"]).any():
                    continue
                ax.plot(line["x"], line["value"], gid=THEORY, **DASHED)
                for bound in ("low", "high") if (line["high"] > line["low"]).any() else ():
                    ax.plot(line["x"], line[bound], gid=FINITE, **DOTTED)

    def _heads(self, cell: Cell, across: str) -> bool:
        """Titles and labels, in a grid at its edges; whether the panel shows a scale of its own."""
        ax, place = cell.ax, len(self.cells)
        row, column = divmod(place, self.columns)
        texts = {
            name: "" if self.frame[name].nunique() < 2 else str(value)
            for name, value in cell.where.items()
        }
        head = texts.pop(across)
        rest = "\n".join(filter(None, [title(self.frame, cell.facet), *texts.values()]))
        above, beside = (rest, head) if self.turned else (head, rest)
        if not self.grid:
            ax.set_title("\n".join(filter(None, [rest, head])), pad=3)
        else:
            if row == 0:
                ax.set_title(above, pad=3)
            if column == self.columns - 1:
                beside = "\n".join(textwrap.fill(line, 18) for line in beside.splitlines())
                ax.text(1.03, 0.5, beside, transform=ax.transAxes, rotation=270, va="center")
        if place + self.columns >= len(self.page.axes):
            ax.set_xlabel(self.x)
        label = self.quantities[cell.quantity].label
        before = self.cells[-1] if column else None
        own = before is None or label != self.quantities[before.quantity].label
        own |= before is not None and ax.get_ylim() != before.ax.get_ylim()
        if own:
            ax.set_ylabel(label)
        else:
            ax.tick_params(labelleft=False)
        return own

    @staticmethod
    def _guides(ax: Axes, guides: list[tuple[float, str]], named: bool) -> None:
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

    def lines_of(self, rows: pd.DataFrame) -> list[tuple[Any, Any, pd.DataFrame]]:
        """(value of the colour axis, of the dash axis, rows by x) for each line of a panel."""
        names = [a for a in (self.roles.colour, self.roles.dash) if a]
        found = []
        for combo in facets(rows, names) if len(rows) else []:
            line = part(rows, combo).sort_values("x")
            hue = combo[self.roles.colour] if self.roles.colour else None
            found.append((hue, combo[self.roles.dash] if self.roles.dash else None, line))
        return found

    def _line(
        self, ax: Axes, line: pd.DataFrame, looks: dict[str, Any], place: int, count: int
    ) -> None:
        """One curve with its band. What a log axis cannot show is marked at the panel's edge."""
        log = ax.get_yscale() == "log"
        if self.layers:
            _embedding(ax, line[line["x"] == 0], looks)
            line = line[line["x"] > 0]
        x, y = line["x"].to_numpy(float), line["value"].to_numpy(float)
        shown = np.isfinite(y) & ((y > 0) | (not log))
        every = max(
            1, len(x) // 6, min(count, len(x) // 3)
        )  # marks take turns where lines coincide
        ax.plot(
            x, np.where(shown, y, np.nan), markevery=(place % every, every),
            markeredgecolor="white", markeredgewidth=0.3, **looks,
        )  # fmt: skip
        if (line["seeds"] > 1).any():
            low, high = (line[c].to_numpy(float) for c in ("low", "high"))
            low = np.maximum(low, ax.get_ylim()[0]) if log else low
            ax.fill_between(x, low, high, color=looks["color"], alpha=0.18, linewidth=0)
        if log:
            edge(ax, x[(y == 0) & (line["not_finite"].to_numpy() == 0)], 0.03, "v", looks["color"])

    def close(self, centre: str, *more: str) -> Figure:
        """Legends for what varies and for the marks in use, and the notes."""
        used = {line.get_gid() for ax in self.page.axes for line in ax.lines}
        row: list[Any] = [
            Line2D(
                [], [], marker="x" if gid == "diverged" else gid, linestyle="none",
                color=style.GREY, markersize=4, label=text,
                markerfacecolor="none" if gid == "o" else style.GREY,
            )
            for gid, text in MARKS.items() if gid in used
        ]  # fmt: skip
        if THEORY in used:
            row.append(Line2D([], [], label=THEORY, **DASHED))
        if FINITE in used:
            row.append(Line2D([], [], label=FINITE, **DOTTED))
        self.page.legends = [*key(self.frame, self.roles), row]
        if "when" in self.frame and self.frame["when"].nunique() == 1:
            self.page.notes.append(f"{str(self.frame['when'].iloc[0]).capitalize()}.")
        self.page.notes += panels.seed_note(self.frame, centre) + panels.outcome_notes(self.frame)
        self.page.notes += [*self._above(), *more, *panels.remark_notes(self.frame)]
        return self.page.close()

    def _above(self) -> list[str]:
        """Says which variants leave their panel at the top, and how far."""
        parts = [c.rows[c.rows["value"] > c.ax.get_ylim()[1] * (1 + 1e-9)] for c in self.cells]
        high = pd.concat(parts).sort_values("value", ascending=False)
        high = high[np.isfinite(high["value"])]
        axes = style.axes_of(self.frame)
        high = high.drop_duplicates(axes) if axes else high.head(1)
        said = [
            f"{panels.variant(self.frame, v) or 'values'} to {v['value']:.3g}"
            for _, v in high.iterrows()
        ]
        more = f" and {len(said) - 6} more variants" if len(said) > 6 else ""
        return [f"Above the axis: {'; '.join(said[:6])}{more}."] if said else []


def _arrange(width: float, side: int, groups: int, shared: bool) -> tuple[int, bool, bool]:
    """How many panels stand side by side, whether they make a grid, and whether it is turned.

    Panels that share their vertical axis may be narrow. A grid too wide for the page is turned;
    where that does not help either, panels follow each other, each with its own title.
    """
    most = 2 if width < 4 else 3 if width < 6 else 4
    narrow = {2: 2, 3: 5, 4: 7}[most] if shared else min(most, 3)
    if side <= 2 and groups > 3:
        return side * max(1, most // side), False, False
    if side <= narrow:
        return side, True, False
    if 1 < groups <= narrow:
        return groups, True, True
    return (3 if most > 3 and side % most and side % 3 == 0 else most), False, False


def _embedding(ax: Axes, point: pd.DataFrame, looks: dict[str, Any]) -> None:
    """The embedding: its line's own mark, hollow."""
    if (point["value"] > 0).any():
        x = 0.5 if ax.get_xscale() == "log" else 0
        hollow = looks | {"marker": looks["marker"] or "o", "linestyle": "none"}
        ax.plot([x], point["value"], markerfacecolor="none", gid="o", **hollow)


def edge(ax: Axes, x: Any, height: float, marker: str, colour: str) -> None:
    """Marks at the edge of a panel for what has no place on its axis."""
    if len(x):
        x = x[:: max(1, len(x) // 6)]
        ax.plot(
            x, np.full(len(x), height), marker, color=colour, markersize=4,
            transform=ax.get_xaxis_transform(), gid=marker, clip_on=False,
        )  # fmt: skip
