"""Heat maps: layer by step, a panel per variant, one colour scale for all."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from stability.figures import panels, style
from stability.figures.roles import facets, part, title
from stability.figures.scales import log_limits, log_ticks
from stability.figures.select import CannotFill


def several_steps(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame itself, or CannotFill where no run recorded more than one step."""
    if frame.groupby("run", observed=True)["step"].nunique().max() < 2:
        raise CannotFill("only one step recorded, a map needs two (train.steps, record.every)")
    return frame


def draw_maps(frame: pd.DataFrame, label: str, width: float) -> Figure:
    """Maps of ``value`` over ``step`` and ``x``; grey: exactly 0, red: nothing is finite."""
    names = [a for a in style.axes_of(frame) if frame[a].nunique() > 1]
    names.sort(key=lambda a: style.is_number(frame, a))
    every = facets(frame, names)
    shown = every[: panels.MAX_PANELS]
    most = 2 if width < 4 else 3 if width < 6 else 4
    inner = frame[names[-1]].nunique() if len(names) > 1 else most + 1
    columns = inner if inner <= most else -(-len(shown) // -(-len(shown) // most))
    page = panels.Page(len(shown), columns, width, least=1.2, most=1.9)
    if len(every) > len(shown):
        page.notes.append(f"First {len(shown)} of {len(every)} panels; the csv has all.")
    low, high = log_limits(frame["value"])
    norm = LogNorm(low, high)
    for i, (ax, where) in enumerate(zip(page.axes, shown, strict=True)):
        mesh = _map(ax, part(frame, where), norm)
        ax.set_title(title(frame, where), pad=3)
        if i % columns == 0:
            ax.set_ylabel("layer (from 1)")
        if i + columns >= len(shown):
            ax.set_xlabel("step")
    bar = page.figure.colorbar(mesh, ax=page.axes, label=label, aspect=30, pad=0.01, fraction=0.04)
    log_ticks(bar.ax.yaxis, (low, high))
    bar.ax.tick_params(labelsize=style.SMALL, width=0.5, length=2.5)
    bar.outline.set_linewidth(0.5)
    special = [
        Patch(color=style.BAD, label="not finite") if _bad(frame).any() else None,
        Patch(color=style.GREY, label="exactly 0") if (frame["value"] == 0).any() else None,
    ]
    page.legends = [[p for p in special if p]]
    page.notes += panels.seed_note(frame, "geometric mean", "Colour")
    page.notes += panels.outcome_notes(frame) + panels.remark_notes(frame)
    return page.close()


def _bad(rows: pd.DataFrame) -> pd.Series:
    return ~np.isfinite(rows["value"].astype(float))


def _map(ax: Axes, rows: pd.DataFrame, norm: LogNorm) -> QuadMesh:
    grid = rows.pivot_table("value", "x", "step", observed=True, dropna=False)
    bad = (
        rows.assign(bad=_bad(rows))
        .pivot_table("bad", "x", "step", observed=True)
        .reindex_like(grid)
    )
    steps, layers = _edges(grid.columns.to_numpy(float)), _edges(grid.index.to_numpy(float))
    values = grid.to_numpy(float)
    cmap = mpl.colormaps[style.SEQUENTIAL]
    mesh = ax.pcolormesh(
        steps, layers, np.ma.masked_less_equal(np.ma.masked_invalid(values), 0), norm=norm,
        cmap=cmap, rasterized=True,
    )  # fmt: skip
    for colour, where in ((style.BAD, bad.to_numpy(float) > 0), (style.GREY, values == 0)):
        if where.any():
            paint = mpl.colors.ListedColormap([colour])
            ax.pcolormesh(
                steps, layers, np.ma.masked_where(~where, where), cmap=paint, rasterized=True
            )
    ax.grid(visible=False)
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    return mesh


def _edges(centres: np.ndarray) -> np.ndarray:
    """Cell borders half-way between the centres."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    return np.array(
        [1.5 * centres[0] - 0.5 * centres[1], *middle, 1.5 * centres[-1] - 0.5 * centres[-2]]
    )
