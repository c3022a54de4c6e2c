"""Weight gradients by block, split by the tokens that they come from."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stability.figures.drawing import style
from stability.figures.drawing.layout import BLOCKS
from stability.figures.drawing.lines import DASHED, THEORY
from stability.figures.drawing.notes import seed_note
from stability.figures.drawing.panel_grid import Wall
from stability.figures.drawing.scales import log_limits, log_y, whole_ticks
from stability.figures.drawing.select import COMMON, ends, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.figures.drawing.variants import levels
from stability.results.sweep_rows import SweepRows

TABLE = "probes"
COLUMNS = (*COMMON, "layer", "sublayer", "probe", "item", "value")
WHERE = {"probe": ["token_grad"]}
STEPS = "ends"
GROUP_LABELS = {
    "first": "position 0",
    "quarter": "rest of the first quarter",
    "rest": "later positions",
}
NOTE = (
    "Norm of the part of the gradient that comes from these positions, over all matrices of the "
    "block. The parts add up to the gradient, their norms do not."
)


def data(rows: SweepRows) -> SweepRows:
    """Norm, over the matrices of a block, of sum_t delta_t x_t^T over each group of positions.

    The root of the sum of squares of the probe's norms; a block of which a matrix is missing is
    left out.
    """
    frame = rows.frame[rows.frame["probe"] == "token_grad"]
    group = frame["item"].astype(str).str.extract(r"\.(\w+)$", expand=False)
    frame = frame[group.isin([*GROUP_LABELS])]
    frame = require(frame, "weight gradients by token recorded (record.probes=[token_grad])")
    frame = frame.assign(
        x=frame["layer"].astype(int) + 1,
        group=pd.Categorical(group[frame.index], [*GROUP_LABELS]),
        square=frame["value"].astype(float).pow(2),
    )
    key = ["run", "step", "x", "group"]
    by = frame.groupby(key, observed=True)["square"]
    # skipna: what is not finite stays so
    total = by.agg(lambda squares: np.sqrt(squares.sum(skipna=False))).rename("size")
    whole = by.size()
    total = total[whole == whole.max()]
    once = frame.drop_duplicates(key).drop(columns="square")
    summed = ends(once.merge(total.reset_index(), on=key))
    return rows.with_frame(over_seeds(summed, rows.axes, ["when", "group", "x"], "size"))


@drawn
def draw(rows: SweepRows, width: float = 6.75, theory: SweepRows | None = None) -> Figure:
    """A row per variant, a line per group of positions; init and end side by side."""
    measured = rows.with_frame(_shown(rows.frame))
    dashed = measured.frame.head(0) if theory is None else _shown(theory.frame)
    wall = Wall(measured, [str(when) for when in levels(rows, "when")], width, aspect=0.6)
    for row in range(len(wall.variants)):
        panels = wall.panels(row, measured.frame)
        limits = log_limits(pd.concat([frame[["value", "low", "high"]] for _, frame in panels]))
        for ax, frame in panels:
            log_y(ax, limits)
            whole_ticks(ax.xaxis)
            _lines(ax, frame)
        for ax, frame in wall.panels(row, dashed):
            for group in GROUP_LABELS:
                line = frame[frame["group"] == group].sort_values("x")
                ax.plot(line["x"], line["value"], **DASHED)
    wall.page.legends = [_legend(len(dashed) > 0)]
    wall.page.notes += [NOTE, *seed_note(rows, "geometric mean")]
    return wall.close(BLOCKS, r"$\|\partial\mathcal{L}/\partial W\|$")


def _shown(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with the column by which `Wall` tells panels apart."""
    return frame.assign(shown=frame["when"].astype(str))


def _lines(ax: Axes, frame: pd.DataFrame) -> None:
    for colour, (group, look) in zip(style.COLOURS, _looks().items(), strict=False):
        line = frame[frame["group"] == group].sort_values("x")
        ax.plot(line["x"], line["value"], markevery=max(1, len(line) // 5), **look)
        ax.fill_between(line["x"], line["low"], line["high"], color=colour, alpha=0.18, linewidth=0)


def _looks() -> dict[str, dict[str, Any]]:
    looks = zip(GROUP_LABELS, style.COLOURS, style.MARKERS, strict=False)
    return {group: {"color": colour, "marker": marker} for group, colour, marker in looks}


def _legend(theory: bool) -> list[Artist]:
    found: list[Artist] = [
        Line2D([], [], label=GROUP_LABELS[group], **look) for group, look in _looks().items()
    ]
    return found + ([Line2D([], [], label=THEORY, **DASHED)] if theory else [])
