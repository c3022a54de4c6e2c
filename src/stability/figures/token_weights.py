"""Weight gradients by block, split by the tokens that they come from."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stability.figures.drawing import panels, style
from stability.figures.drawing.lines import DASHED, THEORY
from stability.figures.drawing.scales import log_limits, log_y, whole_ticks
from stability.figures.drawing.select import COMMON, ends, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.figures.drawing.wall import Wall

TABLE = "probes"
COLUMNS = (*COMMON, "layer", "sublayer", "probe", "item", "value")
WHERE = {"probe": ["token_grad"]}
STEPS = "ends"
GROUPS = {
    "first": "position 0",
    "quarter": "rest of the first quarter",
    "rest": "later positions",
}
NOTE = (
    "Norm of the part of the gradient that comes from these positions, over all matrices of the "
    "block. The parts add up to the gradient, their norms do not."
)


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Norm, over the matrices of a block, of sum_t delta_t x_t^T over each group of positions.

    The root of the sum of squares of the probe's norms; a block of which a matrix is missing is
    left out.
    """
    group = frame["item"].astype(str).str.extract(r"\.(\w+)$", expand=False)
    rows = frame[(frame["probe"] == "token_grad") & group.isin([*GROUPS])]
    rows = require(rows, "weight gradients by token recorded (record.probes=[token_grad])")
    rows = rows.assign(
        x=rows["layer"].astype(int) + 1,
        group=pd.Categorical(group[rows.index], [*GROUPS]),
        square=rows["value"].astype(float).pow(2),
    )
    key = ["run", "step", "x", "group"]
    by = rows.groupby(key, observed=True)["square"]
    # skipna: what is not finite stays so
    total = by.agg(lambda squares: np.sqrt(squares.sum(skipna=False))).rename("size")
    whole = by.size()
    total = total[whole == whole.max()]
    once = rows.drop_duplicates(key).drop(columns="square")
    summed = once.merge(total.reset_index(), on=key)
    summed.attrs = frame.attrs
    return over_seeds(ends(summed), ["when", "group", "x"], "size")


@drawn
def draw(frame: pd.DataFrame, width: float = 6.75, theory: pd.DataFrame | None = None) -> Figure:
    """A row per variant, a line per group of positions; init and end side by side."""
    shown = frame.assign(shown=frame["when"].astype(str))
    wall = Wall(shown, [str(when) for when in style.levels(frame, "when")], width, 0.6)
    dashed = shown.head(0) if theory is None else theory.assign(shown=theory["when"].astype(str))
    for row in range(len(wall.rows)):
        cells = wall.cells(row, shown)
        limits = log_limits(pd.concat([rows[["value", "low", "high"]] for _, rows in cells]))
        for ax, rows in cells:
            log_y(ax, limits)
            whole_ticks(ax.xaxis)
            _lines(ax, rows)
        for ax, rows in wall.cells(row, dashed):
            for group in GROUPS:
                line = rows[rows["group"] == group].sort_values("x")
                ax.plot(line["x"], line["value"], **DASHED)
    wall.page.legends = [_legend(len(dashed) > 0)]
    wall.page.notes += [NOTE, *panels.seed_note(frame, "geometric mean")]
    return wall.close("block", r"$\|\partial\mathcal{L}/\partial W\|$")


def _lines(ax: Axes, rows: pd.DataFrame) -> None:
    for colour, (group, look) in zip(style.COLOURS, _looks().items(), strict=False):
        line = rows[rows["group"] == group].sort_values("x")
        ax.plot(line["x"], line["value"], markevery=max(1, len(line) // 5), **look)
        ax.fill_between(line["x"], line["low"], line["high"], color=colour, alpha=0.18, linewidth=0)


def _looks() -> dict[str, dict[str, Any]]:
    looks = zip(GROUPS, style.COLOURS, style.MARKERS, strict=False)
    return {group: {"color": colour, "marker": marker} for group, colour, marker in looks}


def _legend(theory: bool) -> list[Artist]:
    found: list[Artist] = [
        Line2D([], [], label=GROUPS[group], **look) for group, look in _looks().items()
    ]
    return found + ([Line2D([], [], label=THEORY, **DASHED)] if theory else [])
