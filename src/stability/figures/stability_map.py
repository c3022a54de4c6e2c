"""Outcome and final loss over the grid of the two main axes."""

from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from stability.figures.drawing import notes, style
from stability.figures.drawing.heat import thin
from stability.figures.drawing.page import Page
from stability.figures.drawing.select import CannotDraw
from stability.figures.drawing.style import drawn
from stability.figures.drawing.variants import (
    Facet,
    facets,
    label,
    levels,
    part,
    title,
    varying_axes,
)
from stability.results.sweep_rows import SweepRows

TABLE = "runs"
COLUMNS = (
    *("run", "status", "steps_done", "final_loss", "final_val_loss"),
    *("data.unigram_entropy", "data.vocab"),
)
WHERE: dict[str, list[str]] = {}
STEPS = "ends"
COLOURS = style.SEQUENTIAL
"""A low loss is dark."""
HATCH = "////"
"""Of what diverged."""


def data(rows: SweepRows) -> SweepRows:
    """One row per variant: median final loss over completed seeds, and how the seeds ended.

    ``loss`` is the validation loss where there is one, else the training loss, in nats per token;
    ``first_step`` the earliest step at which a seed diverged.
    """
    frame, axes = rows.frame, list(rows.axes)
    if not axes:
        raise CannotDraw("nothing but the seed varies")
    ended = frame["status"] == "completed"
    loss = frame["final_val_loss"].fillna(frame["final_loss"]).astype(float)
    runs = frame.assign(
        loss=loss.where(ended & np.isfinite(loss)),
        step=frame["steps_done"].where(frame["status"] == "diverged"),
        guess=np.log(frame["data.vocab"].astype(float)),
        validated=frame["final_val_loss"].notna() | ~ended,
        **{s: frame["status"] == s for s in ("completed", "diverged")},
    )
    found = runs.groupby(axes, observed=True, dropna=False).agg(
        loss=("loss", "median"),
        runs=("run", "nunique"),
        completed=("completed", "sum"),
        diverged=("diverged", "sum"),
        first_step=("step", "min"),
        unigram=("data.unigram_entropy", "first"),
        guess=("guess", "first"),
        validated=("validated", "all"),
    )
    if found["loss"].isna().all() and not found["diverged"].any():
        raise CannotDraw("no run has a loss, and none diverged")
    return rows.with_frame(found.reset_index())


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """A cell per variant: colour and number are the loss, a hatch says that seeds diverged."""
    frame, grid = rows.frame, _grid(rows)
    every = facets(rows, grid.panels)
    n_columns, n_rows = len(grid.across), len(grid.down)
    columns = max(1, min(len(every), int(width / max(0.55 * n_columns + 0.9, 2.0))))
    aspect = (0.3 * n_rows + 0.55) / (width / columns)
    most = 0.3 * n_rows + 0.75
    page = Page(len(every), columns, width, aspect, min_height=1.0, max_height=most)
    norm = _colour_range(frame)
    for i, (ax, facet) in enumerate(zip(page.axes, every, strict=True)):
        _draw_grid(ax, rows, grid, part(frame, facet), norm)
        ax.set_title(title(rows, facet), pad=3)
        if i % columns:
            ax.tick_params(labelleft=False)
    if frame["loss"].notna().any():
        _colour_bar(page, norm, frame)
    page.legends = [[_hatched()] if frame["diverged"].any() else []]
    if (frame["runs"] > 1).any():
        page.notes += notes.outcome_notes(rows)
        page.notes.append("Loss: median of the seeds that ended.")
    page.notes += notes.remark_notes(rows)
    return page.close()


class Grid(NamedTuple):
    """The axes of the sweep by where they lie, and the values of those of a panel."""

    row_axis: str | None
    column_axis: str
    panels: list[str]
    """Axes with panels of their own."""
    down: list[Any]
    across: list[Any]


def _grid(rows: SweepRows) -> Grid:
    axes = varying_axes(rows)
    row_axis = axes[0] if len(axes) > 1 else None
    down = levels(rows, row_axis) if row_axis else [None]
    return Grid(row_axis, axes[-1], axes[1:-1], down, levels(rows, axes[-1]))


def _colour_range(frame: pd.DataFrame) -> Normalize:
    """From the best loss to that of guessing."""
    guessing = frame[["guess", "unigram"]].max().max()
    if frame["loss"].isna().all():
        return Normalize()
    worst = float(frame["loss"].max() if pd.isna(guessing) else guessing)  # external: no vocabulary
    return Normalize(float(min(frame["loss"].min(), worst - 1e-3)), worst)


def _colour_bar(page: Page, norm: Normalize, frame: pd.DataFrame) -> None:
    """The colour scale of the losses, and which losses they are."""
    what = "validation loss" if frame["validated"].all() else "final loss"
    unit = "" if frame["guess"].isna().all() else "\n(nats per token)"
    colours = mpl.cm.ScalarMappable(norm, mpl.colormaps[COLOURS])
    over = (frame["loss"] > norm.vmax).any()
    bar = page.figure.colorbar(
        colours, ax=page.axes, label=what + unit, extend="max" if over else "neither", pad=0.01,
        fraction=0.05,
    )  # fmt: skip
    thin(bar)


def _hatched() -> Rectangle:
    """What the legend shows of cells with diverged runs."""
    return Rectangle(
        (0, 0), 1, 1, facecolor="white", edgecolor=style.BAD, hatch=HATCH, label="diverged",
        linewidth=0.5,
    )  # fmt: skip


def _draw_grid(ax: Axes, rows: SweepRows, grid: Grid, frame: pd.DataFrame, norm: Normalize) -> None:
    """One panel: a cell for each variant in the frame."""
    for y, v in enumerate(grid.down):
        for x, w in enumerate(grid.across):
            facet: Facet = {grid.column_axis: w} | ({grid.row_axis: v} if grid.row_axis else {})
            cell = part(frame, facet)
            if len(cell):
                _draw_cell(ax, x, y, cell.iloc[0], norm)
    ax.set_xlim(-0.5, len(grid.across) - 0.5)
    ax.set_ylim(len(grid.down) - 0.5, -0.5)
    names = [label(rows, grid.row_axis, v) for v in grid.down] if grid.row_axis else [""]
    ax.set_yticks(range(len(grid.down)), names)
    columns = [label(rows, grid.column_axis, w) for w in grid.across]
    ax.set_xticks(range(len(grid.across)), columns)
    ax.grid(visible=False)
    ax.tick_params(length=0)


def _draw_cell(ax: Axes, x: int, y: int, cell: pd.Series, norm: Normalize) -> None:
    known = np.isfinite(cell["loss"])
    colour = mpl.colormaps[COLOURS](norm(cell["loss"])) if known else (1.0, 1.0, 1.0, 1.0)
    bad = cell["diverged"] > 0
    ax.add_patch(
        Rectangle(
            (x - 0.47, y - 0.46), 0.94, 0.92, facecolor=colour, linewidth=0.6,
            edgecolor=style.BAD if bad else style.PALE, hatch=HATCH if bad and not known else None,
        )
    )  # fmt: skip
    light = np.dot(colour[:3], (0.299, 0.587, 0.114))
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8} if bad and not known else None
    ax.text(
        x, y, _text(cell, known), ha="center", va="center", fontsize=6, bbox=box,
        color="white" if light < 0.5 else style.INK,
    )  # fmt: skip


def _text(cell: pd.Series, known: bool) -> str:
    lines = []
    if known:
        lines.append(f"{cell['loss']:.2f}" if abs(cell["loss"]) < 1e3 else f"{cell['loss']:.0e}")
    if cell["diverged"]:
        every = cell["runs"] == 1
        lines.append(
            f"step {cell['first_step']:.0f}" if every else f"{cell['diverged']}/{cell['runs']} div."
        )
    if not lines:
        lines.append("not ended" if not cell["completed"] else "no loss")
    return "\n".join(lines)
