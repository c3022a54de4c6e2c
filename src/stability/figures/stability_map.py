"""Outcome and final loss over the grid of the two main axes."""

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from stability.figures.drawing import panels, style
from stability.figures.drawing.roles import facets, part, title
from stability.figures.drawing.select import CannotFill
from stability.figures.drawing.style import axes_of, drawn

TABLE = "runs"
COLUMNS = (
    *("run", "status", "steps_done", "final_loss", "final_val_loss"),
    *("data.unigram_entropy", "data.vocab"),
)
WHERE: dict[str, list[str]] = {}
STEPS = "ends"


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per variant: median final loss over the seeds that ended, and what became of each.

    ``loss`` is the validation loss where there is one, else the training loss, in nats per token;
    ``first_step`` the earliest step at which a seed diverged.
    """
    axes = axes_of(frame)
    if not axes:
        raise CannotFill("nothing but the seed varies")
    ended = frame["status"] == "completed"
    loss = frame["final_val_loss"].fillna(frame["final_loss"]).astype(float)
    rows = frame.assign(
        loss=loss.where(ended & np.isfinite(loss)),
        step=frame["steps_done"].where(frame["status"] == "diverged"),
        guess=np.log(frame["data.vocab"].astype(float)),
        **{s: frame["status"] == s for s in ("completed", "diverged")},
    )
    found = rows.groupby(axes, observed=True, dropna=False).agg(
        loss=("loss", "median"),
        runs=("run", "nunique"),
        completed=("completed", "sum"),
        diverged=("diverged", "sum"),
        first_step=("step", "min"),
        unigram=("data.unigram_entropy", "first"),
        guess=("guess", "first"),
    )
    result = found.reset_index()
    result.attrs = frame.attrs
    return result


@drawn
def draw(frame: pd.DataFrame, width: float = 6.75) -> Figure:
    """A cell per variant: colour and number are the loss, a hatch says that seeds diverged."""
    axes = [a for a in axes_of(frame) if frame[a].nunique() > 1]
    axes.sort(key=lambda a: style.is_number(frame, a))
    rows, columns, rest = _place(axes)
    every = facets(frame, rest)
    n_columns, n_rows = len(_levels(frame, columns)), len(_levels(frame, rows))
    across = max(1, min(len(every), int(width / max(0.55 * n_columns + 0.9, 2.0))))
    height = (0.3 * n_rows + 0.55) / (width / across)
    page = panels.Page(
        len(every), across, width, aspect=height, least=1.0, most=0.3 * n_rows + 0.75
    )
    worst = float(np.nanmax([frame["guess"].max(), frame["unigram"].max()]))
    best = float(np.nanmin([frame["loss"].min(), worst - 1e-3]))
    norm = Normalize(best, worst)
    for i, (ax, where) in enumerate(zip(page.axes, every, strict=True)):
        here = part(frame, where)
        _grid(ax, frame, here, rows, columns, norm)
        ax.set_title(title(frame, where), pad=3)
        if i % across:
            ax.tick_params(labelleft=False)
    mappable = mpl.cm.ScalarMappable(norm, mpl.colormaps[CMAP])
    bar = page.figure.colorbar(
        mappable,
        ax=page.axes,
        label="validation loss\n(nats per token)",
        extend="max",
        pad=0.01,
        fraction=0.05,
    )
    bar.ax.tick_params(labelsize=style.SMALL, width=0.5, length=2.5)
    bar.outline.set_linewidth(0.5)
    page.legends = [[Rectangle((0, 0), 1, 1, facecolor="white", edgecolor=style.BAD, hatch="////",
                               label="diverged", linewidth=0.5)]
                    if frame["diverged"].any() else []]  # fmt: skip
    page.notes += panels.outcome_notes(frame) if (frame["runs"] > 1).any() else []
    if (frame["runs"] > 1).any():
        page.notes.append("Loss: median of the seeds that ended.")
    page.notes += panels.remark_notes(frame)
    return page.close()


CMAP = "viridis_r"


def _place(axes: list[str]) -> tuple[str | None, str, list[str]]:
    """(axis down, axis across, axes with panels of their own)."""
    return (axes[0] if len(axes) > 1 else None), axes[-1], axes[1:-1]


def _levels(frame: pd.DataFrame, axis: str | None) -> list[Any]:
    return style.levels(frame, axis) if axis else [None]


def _grid(
    ax: Axes,
    frame: pd.DataFrame,
    here: pd.DataFrame,
    rows: str | None,
    columns: str,
    norm: Normalize,
) -> None:
    down, across = _levels(frame, rows), _levels(frame, columns)
    for y, v in enumerate(down):
        for x, w in enumerate(across):
            cell = part(here, {columns: w} | ({rows: v} if rows else {}))
            if len(cell):
                _cell(ax, x, y, cell.iloc[0], norm)
    ax.set_xlim(-0.5, len(across) - 0.5)
    ax.set_ylim(len(down) - 0.5, -0.5)
    names = [style.label(frame, rows, v) for v in down] if rows else [""]
    ax.set_yticks(range(len(down)), names)
    ax.set_xticks(range(len(across)), [style.label(frame, columns, w) for w in across])
    ax.grid(visible=False)
    ax.tick_params(length=0)


def _cell(ax: Axes, x: int, y: int, cell: pd.Series, norm: Normalize) -> None:
    known = np.isfinite(cell["loss"])
    colour = mpl.colormaps[CMAP](norm(cell["loss"])) if known else (1.0, 1.0, 1.0, 1.0)
    bad = cell["diverged"] > 0
    ax.add_patch(
        Rectangle(
            (x - 0.47, y - 0.46), 0.94, 0.92, facecolor=colour, linewidth=0.6,
            edgecolor=style.BAD if bad else style.PALE, hatch="////" if bad and not known else None,
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
