"""Heat maps: layer by step or position, a panel per variant, with their colour scales."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from stability.figures.drawing import notes, style
from stability.figures.drawing.layout import BLOCKS
from stability.figures.drawing.page import MAX_PANELS, Page
from stability.figures.drawing.rounding import is_rounding
from stability.figures.drawing.scales import log_limits, log_ticks, whole_ticks
from stability.figures.drawing.select import CannotDraw
from stability.figures.drawing.variants import facets, part, title, varying_axes
from stability.figures.drawing.view import view
from stability.results.sweep_rows import SweepRows

MAX_TICKS = 5
FARTHEST = 1e90
"""A colour scale that reaches farther from 1 has no room for the ends that values leave."""


def several_steps(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame itself, or CannotDraw where no run recorded more than one step."""
    if frame.groupby("run", observed=True)["step"].nunique().max() < 2:
        raise CannotDraw("only one step recorded, a map needs two (train.steps, record.every)")
    return frame


def draw_maps(rows: SweepRows, label: str, width: float) -> Figure:
    """Maps of ``value`` over ``step`` and ``x``; grey: exactly 0, red: nothing is finite."""
    frame, names = rows.frame, varying_axes(rows)
    every = facets(rows, names)
    shown = every[:MAX_PANELS]
    columns, rows_alike = _arrange(frame, names, len(shown), width)
    page = Page(len(shown), columns, width, min_height=1.2, max_height=1.9)
    if len(every) > len(shown):
        page.notes.append(f"First {len(shown)} of {len(every)} panels; the csv has all.")
    for group in _scales(len(shown), columns if rows_alike else 1):
        axes = [page.axes[i] for i in group]
        parts = [part(frame, shown[i]) for i in group]
        limits, beyond = _colour_limits(pd.concat(parts))
        for ax, i, own in zip(axes, group, parts, strict=True):
            heat_map(ax, own, "step", limits)
            ax.set_title(title(rows, shown[i]), pad=3)
        colour_bar(page, axes, label, limits, beyond)
    for i, ax in enumerate(page.axes):
        ax.set_ylabel(BLOCKS if i % columns == 0 else "")
        ax.set_xlabel("step" if i + columns >= len(shown) else "")
    page.legends = [legend_off_scale(frame)]
    page.notes += notes.seed_note(rows, "geometric mean", "Colour")
    page.notes += notes.outcome_notes(rows) + notes.remark_notes(rows)
    return page.close()


def _arrange(frame: pd.DataFrame, names: list[str], count: int, width: float) -> tuple[int, bool]:
    """Panels side by side, and whether a row holds the values of the last axis for one variant."""
    most = 2 if width < 4 else 3 if width < 6 else 4
    inner = frame[names[-1]].nunique() if len(names) > 1 else most + 3
    if inner <= most + 2 and count % inner == 0:
        return inner, True
    return -(-count // -(-count // most)), False


def _scales(count: int, row: int) -> list[list[int]]:
    """Panels that share a colour scale: all, or, where the view asks for it, those of a row."""
    if not view().own_colours:
        return [list(range(count))]
    return [list(range(i, min(i + row, count))) for i in range(0, count, row)]


def _colour_limits(frame: pd.DataFrame) -> tuple[tuple[float, float], str]:
    """The colour scale of some maps, and which of its ends (`Colorbar.extend`) values leave.

    What is rounding error, or belongs to runs that all diverged, does not set the scale of the
    others.
    """
    sound = frame[~is_rounding(frame) & (frame["diverged"] < frame["runs"])]
    limits = log_limits((sound if len(sound) else frame)["value"])
    above = limits[1] < FARTHEST and (frame["value"] > limits[1]).any()
    below = (frame["value"] < limits[0]) & (frame["value"] > 0)
    below = limits[0] > 1 / FARTHEST and below.any()
    return limits, "both" if above and below else "max" if above else "min" if below else "neither"


def _bad(rows: pd.DataFrame) -> pd.Series:
    return ~np.isfinite(rows["value"].astype(float))


def legend_off_scale(frame: pd.DataFrame) -> list[Artist]:
    """The legend of the values that the colour scale lacks."""
    found: list[Artist] = []
    if _bad(frame).any():
        found.append(Patch(color=style.BAD, label="not finite"))
    if (frame["value"] == 0).any():
        found.append(Patch(color=style.GREY, label="exactly 0"))
    return found


def colour_bar(
    page: Page, axes: list[Axes], label: str, limits: tuple[float, float], extend: str = "neither"
) -> None:
    """The colour scale of these panels, beside them."""
    colours = ScalarMappable(LogNorm(*limits), mpl.colormaps[style.SEQUENTIAL])
    bar = page.figure.colorbar(
        colours, ax=axes, label=label, aspect=25, pad=0.02, fraction=0.05, extend=extend
    )
    log_ticks(bar.ax.yaxis, limits)
    thin(bar)


def thin(bar: Colorbar) -> None:
    """Draw a colour scale with the sizes of other axes."""
    bar.ax.tick_params(labelsize=style.SMALL, width=0.5, length=2.5)
    bar.outline.set_linewidth(0.5)


def heat_map(ax: Axes, rows: pd.DataFrame, across: str, limits: tuple[float, float]) -> None:
    """``value`` by ``x``, upwards, and the column ``across``."""
    grid = rows.pivot_table("value", "x", across, observed=True, dropna=False)
    bad = (
        rows.assign(bad=_bad(rows))
        .pivot_table("bad", "x", across, observed=True)
        .reindex_like(grid)
    )
    borders = _edges(grid.columns.to_numpy(float)), _edges(grid.index.to_numpy(float))
    values = grid.to_numpy(float)
    ax.pcolormesh(
        *borders, np.ma.masked_less_equal(np.ma.masked_invalid(values), 0), norm=LogNorm(*limits),
        cmap=mpl.colormaps[style.SEQUENTIAL], rasterized=True,
    )  # fmt: skip
    for colour, where in ((style.BAD, bad.to_numpy(float) > 0), (style.GREY, values == 0)):
        if where.any():
            paint = mpl.colors.ListedColormap([colour])
            ax.pcolormesh(*borders, np.ma.masked_where(~where, where), cmap=paint, rasterized=True)
    ax.grid(visible=False)
    steps = [int(step) for step in grid.columns]
    ax.set_xticks(steps[:: -(-len(steps) // MAX_TICKS)])  # places that exist
    whole_ticks(ax.yaxis)


def _edges(centres: np.ndarray) -> np.ndarray:
    """Cell borders half-way between the centres."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    return np.array(
        [1.5 * centres[0] - 0.5 * centres[1], *middle, 1.5 * centres[-1] - 0.5 * centres[-2]]
    )
