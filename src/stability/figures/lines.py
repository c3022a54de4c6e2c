"""Lines over layers, steps or depths: a panel per facet, bands, marks for what is no number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stability.figures import panels, style

Guides = Callable[[pd.DataFrame], list[tuple[float, str]]]


MARKS = {
    "x": "first not finite",
    "v": "exactly 0",
    "o": "embedding",
    "diverged": "diverged",
}
"""Group id of a mark -> its name in the legend."""

BLOCKS = r"blocks passed $l$"


@dataclass(frozen=True)
class Quantity:
    """What a panel shows: its axis, and lines that stand for known limits."""

    label: str
    log: bool = True
    limits: tuple[float, float] | None = None
    guides: Guides = lambda rows: []


@dataclass(frozen=True)
class Cell:
    """One panel: its axes, its rows, and the values that select them."""

    ax: Axes
    rows: pd.DataFrame
    facet: dict[str, Any]
    quantity: str


class Lines:
    """A page of line panels drawn from the frame that `select.over_seeds` returns.

    Args:
        frame: axes, ``quantity``, the panel columns, ``x``, ``value``, ``low``, ``high``, ...
        quantities: what each value of ``quantity`` means.
        x: the label of the horizontal axis.
        across: columns whose values stand side by side.
        down: columns whose values stand below each other.
        width: inches.
        without: axes that are no lines (the one on x).
        layers: x counts blocks passed; x = 0, the embedding, is a mark of its own.
        theory: rows of the same axes, panel columns, ``x`` and ``value``, drawn dashed.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        quantities: dict[str, Quantity],
        x: str,
        across: Sequence[str] = (),
        down: Sequence[str] = (),
        width: float = 6.75,
        without: Sequence[str] = (),
        layers: bool = False,
        theory: pd.DataFrame | None = None,
    ) -> None:
        self.frame, self.quantities, self.theory = frame, quantities, theory
        self.layers, self.x = layers, x
        self.roles = panels.roles(frame, without)
        facets = panels.facets(frame, self.roles.facets)
        side, below = panels.facets(frame, across), panels.facets(frame, down)
        every = [(f, {**d, **a}) for f, d, a in product(facets, below, side)]
        self.columns = panels.columns_for(width, len(side), len(facets) * len(below))
        shown = every[: panels.MAX_PANELS]
        self.page = panels.Page(len(shown), self.columns, width)
        if len(every) > len(shown):
            self.page.notes.append(f"First {len(shown)} of {len(every)} panels; the csv has all.")
        self.looks = panels.marks(frame, self.roles)
        self.cells: list[Cell] = []
        for ax, (facet, where) in zip(self.page.axes, shown, strict=True):
            rows = panels.part(frame, facet | where)
            name = where["quantity"] if "quantity" in where else frame["quantity"].iloc[0]
            self._panel(ax, rows, name, facet, where)

    def _panel(
        self,
        ax: Axes,
        rows: pd.DataFrame,
        name: str,
        facet: dict[str, Any],
        where: dict[str, Any],
    ) -> None:
        quantity = self.quantities[name]
        heads = [panels.title(self.frame, facet)]
        heads += [
            str(v) for k, v in where.items() if k != "quantity" and self.frame[k].nunique() > 1
        ]
        ax.set_title("\n".join(filter(None, heads)), pad=3)
        guides = quantity.guides(rows)
        if quantity.log:
            panels.log_y(ax, self._limits(name, guides))
        elif quantity.limits:
            ax.set_ylim(*quantity.limits)
        place = self.page.axes.index(ax)
        if place + self.columns >= len(self.page.axes):
            ax.set_xlabel(self.x)
        if place % self.columns == 0 or len(self.quantities) > 1:
            ax.set_ylabel(quantity.label)
        else:
            ax.tick_params(labelleft=False)
        self._guides(ax, guides)
        lines = self.lines_of(rows)
        if self.layers:
            lengths = [max(1, int(line["x"].max())) for _, _, line in lines]
            panels.layer_x(ax, lengths, bool((self.frame["x"] == 0).any()))
        for hue, dash, line in lines:
            self._line(ax, line, self.looks(hue, dash))
        if self.theory is not None:
            for _, _, line in self.lines_of(panels.part(self.theory, facet | where)):
                ax.plot(
                    line["x"], line["value"], color=style.INK, linewidth=0.8, linestyle=(0, (3, 2))
                )
        self.cells.append(Cell(ax, rows, facet, name))

    def _limits(self, name: str, guides: list[tuple[float, str]]) -> tuple[float, float]:
        quantity = self.quantities[name]
        if quantity.limits:
            return quantity.limits
        rows = self.frame[self.frame["quantity"] == name]
        low, high = panels.log_limits(rows[["value", "low", "high"]])
        near = [v for v, _ in guides if low / 1e4 < v < high * 1e4]
        return panels.log_limits(rows[["value", "low", "high"]], near)

    def _guides(self, ax: Axes, guides: list[tuple[float, str]]) -> None:
        low, high = ax.get_ylim()
        for value, text in guides:
            if low < value < high:
                ax.axhline(value, color=style.INK, linewidth=0.7, linestyle=(0, (1, 1.5)))
                ax.annotate(
                    text, (1, value), xycoords=("axes fraction", "data"), xytext=(-1, 1),
                    textcoords="offset points", ha="right", va="bottom", fontsize=6,
                )  # fmt: skip

    def lines_of(self, rows: pd.DataFrame) -> list[tuple[Any, Any, pd.DataFrame]]:
        """(value of the colour axis, of the dash axis, rows by x) for each line of a panel."""
        names = [a for a in (self.roles.colour, self.roles.dash) if a]
        found = []
        for combo in panels.facets(rows, names):
            line = panels.part(rows, combo).sort_values("x")
            hue = combo[self.roles.colour] if self.roles.colour else None
            found.append((hue, combo[self.roles.dash] if self.roles.dash else None, line))
        return found

    def _line(self, ax: Axes, line: pd.DataFrame, looks: dict[str, Any]) -> None:
        log = ax.get_yscale() == "log"
        if self.layers:
            self._embedding(ax, line[line["x"] == 0], looks["color"])
            line = line[line["x"] > 0]
        y = line["value"].to_numpy(float)
        shown = np.isfinite(y) & ((y > 0) | (not log))
        x = line["x"].to_numpy(float)
        every = max(1, len(x) // 6)
        offset = len(ax.lines) % every
        ax.plot(
            x, np.where(shown, y, np.nan), markevery=(offset, every), markeredgecolor="white",
            markeredgewidth=0.3, **looks,
        )  # fmt: skip
        if (line["seeds"] > 1).any():
            floor = ax.get_ylim()[0] if log else -np.inf
            low, high = (line[c].to_numpy(float) for c in ("low", "high"))
            ax.fill_between(
                x, np.maximum(low, floor), high, color=looks["color"], alpha=0.18, linewidth=0
            )
        if log and (y == 0).any():
            self._edge(ax, x[y == 0], 0.03, "v", looks["color"])
        if (line["not_finite"] > 0).any():
            self._edge(ax, x[line["not_finite"].to_numpy() > 0][:1], 0.97, "x", looks["color"])

    @staticmethod
    def _embedding(ax: Axes, point: pd.DataFrame, colour: str) -> None:
        if len(point) and (point["value"] > 0).any():
            x = 0.5 if ax.get_xscale() == "log" else 0
            ax.plot([x], point["value"], "o", color=colour, markerfacecolor="none", gid="o")

    @staticmethod
    def _edge(ax: Axes, x: Any, height: float, marker: str, colour: str) -> None:
        """Marks at the edge of a panel for what has no place on its axis."""
        ax.plot(
            x[:: max(1, len(x) // 6)], [height] * len(x[:: max(1, len(x) // 6)]), marker,
            color=colour, transform=ax.get_xaxis_transform(), markersize=4, gid=marker,
        )  # fmt: skip

    def close(self, centre: str, *more: str) -> Figure:
        """Legends for what varies and for the marks in use, and the notes."""
        marks: list[Any] = []
        used = {line.get_gid() for ax in self.page.axes for line in ax.lines}
        for gid, text in MARKS.items():
            if gid in used:
                face = "none" if gid == "o" else style.GREY
                marker = "x" if gid == "diverged" else gid
                marks.append(
                    Line2D([], [], marker=marker, linestyle="none", color=style.GREY, markersize=4,
                           markerfacecolor=face, label=text)
                )  # fmt: skip
        self.page.legends = [*panels.key(self.frame, self.roles), marks]
        self.page.notes += panels.seed_note(self.frame, centre) + panels.outcome_notes(self.frame)
        self.page.notes += [*more, *panels.remark_notes(self.frame)]
        return self.page.close()
