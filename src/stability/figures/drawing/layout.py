"""The layout of a page of line panels, as data: which panel shows which rows, limits and titles."""

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from stability.figures.drawing import scales
from stability.figures.drawing.page import MAX_PANELS
from stability.figures.drawing.rounding import is_rounding
from stability.figures.drawing.variant_looks import Look, Looks, looks, roles
from stability.figures.drawing.variants import Facet, facets, part, title
from stability.figures.drawing.view import XScale, view
from stability.results.sweep_rows import SweepRows

Limits = tuple[float, float]
Guides = Callable[[pd.DataFrame], list[tuple[float, str]]]
"""Rows -> values with names: known limits, drawn as dotted lines across a panel."""

BLOCKS = "block $l$"
FRACTION = "depth $l/L$"
ROOM = 0.12
"""Share of an axis that is free for arrows and values of curves that leave it."""
NEAR = 4.0
"""The embedding may stretch an axis by this factor; beyond, it is marked at the edge."""


@dataclass(frozen=True)
class Quantity:
    """What a panel shows: its vertical axis, and known limits."""

    label: str
    log: bool = True
    limits: Limits | None = None
    guides: Guides = lambda rows: []
    backward: bool = False
    """Whether it is computed from the last block to the first."""


@dataclass(frozen=True)
class Chart:
    """What a page of line panels shows, whatever the sweep."""

    quantities: Mapping[str, Quantity]
    """What each value of the column ``quantity`` means."""
    x: str
    """Label of the horizontal axis."""
    across: str
    """The column whose values lie side by side."""
    down: str | None = None
    """The column whose values lie below each other, if any."""
    without: tuple[str, ...] = ()
    """Axes of the sweep that get no lines of their own: the one on x."""
    layers: bool = False
    """Whether x is the block; x = 0, the embedding, then has a mark of its own."""


@dataclass(frozen=True)
class Panel:
    """One panel: the rows it shows and what is written around it."""

    frame: pd.DataFrame
    facet: Facet
    """Values of axes of the sweep."""
    where: Facet
    """Values of the columns `Chart.across` and `Chart.down`."""
    quantity: Quantity
    limits: Limits
    title: str
    beside: str
    """A title at the right edge of a grid."""


class Curve(NamedTuple):
    """One line of a panel."""

    look: Look
    frame: pd.DataFrame
    """Its rows, by x."""


class Grid(NamedTuple):
    """How panels follow each other."""

    columns: int
    aligned: bool
    """Whether rows and columns have a meaning, so that titles at the edges suffice."""
    turned: bool
    """Whether the values of `Chart.across` lie below each other instead."""


@dataclass(frozen=True)
class Layout:
    """A page of line panels before it is drawn."""

    rows: SweepRows
    chart: Chart
    looks: Looks
    grid: Grid
    panels: list[Panel]
    total: int
    """Panels that the rows would fill; a page holds at most `MAX_PANELS` of them."""
    x_scale: XScale = "layer"
    """The axis of layers, never ``auto``; see `View.x`."""

    @property
    def x_label(self) -> str:
        """The horizontal axis and, of layers, its scale."""
        name = self.chart.x
        if not self.chart.layers or self.x_scale == "layer":
            return name
        return FRACTION if self.x_scale == "fraction" else f"{name} (log)"

    @property
    def min_height(self) -> float:
        """Least height of a panel in inches."""
        if not self.grid.aligned:
            return 1.75
        return 1.5 if len(self.panels) <= 3 * self.grid.columns else 1.25

    def is_lowest(self, place: int) -> bool:
        """Whether no panel lies below this one, so that it shows the label of x."""
        return place + self.grid.columns >= len(self.panels)

    def has_own_scale(self, place: int) -> bool:
        """Whether the panel to the left has another vertical axis, or there is none."""
        if place % self.grid.columns == 0:
            return True
        panel, left = self.panels[place], self.panels[place - 1]
        return panel.quantity.label != left.quantity.label or panel.limits != left.limits

    def curves(self, frame: pd.DataFrame) -> list[Curve]:
        """The lines that these rows make, in legend order."""
        colour, dash = self.looks.roles.colour, self.looks.roles.dash
        axes = [axis for axis in (colour, dash) if axis]
        found = []
        for values in facets(self.rows.with_frame(frame), axes) if len(frame) else []:
            hue = values[colour] if colour else None
            look = self.looks.look(hue, values[dash] if dash else None)
            line = part(frame, values).sort_values("x")
            if self.chart.layers and self.x_scale == "fraction":
                line = line.assign(x=line["x"] / max(1, line["x"].max()))
            found.append(Curve(look, line))
        return found


def layout(rows: SweepRows, chart: Chart, width: float) -> Layout:
    """Lay out the numbers that `select.over_seeds` returns.

    Args:
        rows: with the columns ``quantity``, `chart.across`, `chart.down`, ``x``, ``value``,
            ``low``, ``high``, ``runs`` and ``diverged``.
        chart: what the page shows.
        width: of the page, in inches.
    """
    order = pd.CategoricalDtype(list(chart.quantities))
    rows = rows.with_frame(rows.frame.assign(quantity=rows.frame["quantity"].astype(order)))
    by = roles(rows, chart.without)
    below = facets(rows, [chart.down] if chart.down else [])
    groups = list(product(facets(rows, by.facets), below))
    side = facets(rows, [chart.across])
    grid = _grid(width, len(side), len(groups), shared=len(chart.quantities) == 1)
    if grid.turned:
        pairs = [(facet, down | across) for across, (facet, down) in product(side, groups)]
    else:
        pairs = [(facet, down | across) for (facet, down), across in product(groups, side)]
    shown = pairs[: MAX_PANELS // grid.columns * grid.columns]
    panels = [_panel(rows, chart, grid, place, *both) for place, both in enumerate(shown)]
    plan = Layout(rows, chart, looks(rows, by), grid, panels, len(pairs))
    return replace(plan, x_scale=_x_scale(plan))


def _x_scale(plan: Layout) -> XScale:
    """The axis of layers that the view asks for, or that suits the depths."""
    if view().x != "auto":
        return view().x
    for panel in plan.panels:
        if len({curve.frame["x"].max() for curve in plan.curves(panel.frame)}) > 1:
            return "fraction"
    return "layer"


def _grid(width: float, side: int, groups: int, shared: bool) -> Grid:
    """The grid for `side` values across and `groups` down.

    Panels that share their vertical axis may be narrow. A grid too wide for the page is turned;
    where that does not help either, panels follow each other, each with its own title.
    """
    most = 2 if width < 4 else 3 if width < 6 else 4
    narrow = {2: 2, 3: 5, 4: 7}[most] if shared else min(most, 3)
    if side <= 2 and groups > 3:
        return Grid(side * max(1, most // side), aligned=False, turned=False)
    if side == 1 and 1 < groups <= most:
        return Grid(groups, aligned=True, turned=True)
    if side <= narrow:
        return Grid(side, aligned=True, turned=False)
    if 1 < groups <= narrow:
        return Grid(groups, aligned=True, turned=True)
    columns = 3 if most > 3 and side % most and side % 3 == 0 else most
    return Grid(columns, aligned=False, turned=False)


def _panel(
    rows: SweepRows, chart: Chart, grid: Grid, place: int, facet: Facet, where: Facet
) -> Panel:
    name = str(where.get("quantity", rows.frame["quantity"].iloc[0]))
    quantity = chart.quantities[name]
    below = {chart.down: where[chart.down]} if chart.down else {}
    limits = quantity.limits or _limits(
        part(rows.frame, {"quantity": name} | below), quantity, chart.layers
    )
    above, beside = _titles(rows, chart, grid, facet, where)
    if grid.aligned:
        above = above if place < grid.columns else ""
        beside = beside if (place + 1) % grid.columns == 0 else ""
    return Panel(part(rows.frame, facet | where), facet, where, quantity, limits, above, beside)


def is_unsound(rows: pd.DataFrame, quantity: Quantity) -> pd.Series:
    """Whether every run of a row's variant diverged, or its gradient is rounding error."""
    bad = rows["diverged"] >= rows["runs"]
    return bad | is_rounding(rows) if quantity.backward else bad


def _limits(rows: pd.DataFrame, quantity: Quantity, layers: bool) -> Limits:
    """Limits that all panels of a row share; a guide within six decades belongs to them.

    Unsound variants do not count, where there are others; nor does an embedding far from the
    blocks.
    """
    unsound = is_unsound(rows, quantity)
    beyond = rows[unsound]
    rows = rows if unsound.all() else rows[~unsound]
    inner = rows[rows["x"] > 0] if layers and (rows["x"] > 0).any() else rows
    values = inner[["value", "low", "high"]]
    if not quantity.log:
        return scales.linear_limits(values)
    low, high = scales.log_limits(values)
    outer = rows.loc[rows["x"] == 0, "value"] if layers else []
    near = [v for v, _ in quantity.guides(rows) if low / 1e6 < v < high * 1e6]
    near += [v for v in outer if low / NEAR < v < high * NEAR]
    low, high = scales.log_limits(values, near)
    if (beyond["value"].replace(np.inf, np.nan) > high).any():
        return low, scales.with_room(low, high, ROOM)
    return low, high


def _titles(
    rows: SweepRows, chart: Chart, grid: Grid, facet: Facet, where: Facet
) -> tuple[str, str]:
    """What is written above a panel and, in an aligned grid, beside it."""
    texts = {c: str(v) if rows.frame[c].nunique() > 1 else "" for c, v in where.items()}
    across = texts.pop(chart.across)
    rest = "\n".join(filter(None, [title(rows, facet), *texts.values()]))
    if not grid.aligned:
        return "\n".join(filter(None, [rest, across])), ""
    above, beside = (rest, across) if grid.turned else (across, rest)
    return above, "\n".join(textwrap.fill(line, 18) for line in beside.splitlines())
