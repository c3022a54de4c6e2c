"""Gradient with respect to the residual stream, by layer and token position."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stability.figures.drawing.heat import colour_bar, heat_map, legend_off_scale
from stability.figures.drawing.notes import seed_note
from stability.figures.drawing.panel_grid import Wall
from stability.figures.drawing.scales import log_limits
from stability.figures.drawing.select import COMMON, ends, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.figures.drawing.variants import levels
from stability.results.stream import ends_block, run_columns
from stability.results.sweep_rows import SweepRows
from stability.results.tokens import first_over_others, positions

TABLE = "probes"
COLUMNS = (*COMMON, "layer", "sublayer", "probe", "item", "value")
WHERE = {"probe": ["token_grad"]}
STEPS = "ends"
PREDICTED = "at init, theory"
NOTE = (
    "Gradient, in nats per unit, of the mean loss with respect to the stream after l blocks at "
    "position t; root mean square over sequences and features. Each row has its own scale. Number: "
    "position 0 over the mean of the others at l = 1 (as in arXiv:2603.17771)."
)


def data(rows: SweepRows) -> SweepRows:
    """Rms of dLoss/dx_l at each position, l = 1 .. L, at the first and the last recorded step.

    ``first_over_others`` is that of position 0 over the mean of the others, at this l.
    """
    frame = rows.frame[(rows.frame["layer"] >= 0) & ends_block(rows.frame)]
    frame = require(positions(frame), "gradient by token recorded (record.probes=[token_grad])")
    frame = ends(frame.assign(x=frame["layer"].astype(int) + 1))
    found = over_seeds(frame, rows.axes, ["when", "x", "position"], "rms")
    firsts = first_over_others(frame, [*run_columns(frame), "when", "x"])
    ratios = over_seeds(firsts, rows.axes, ["when", "x"], "ratio")
    place = [*rows.axes, "when", "x"]
    ratios = ratios[[*place, "value"]].rename(columns={"value": "first_over_others"})
    return rows.with_frame(found.merge(ratios, on=place, how="left"))


@drawn
def draw(rows: SweepRows, width: float = 6.75, theory: SweepRows | None = None) -> Figure:
    """A row per variant; for each value of one more axis init, theory and end side by side."""
    both, shown = _with_theory(rows, theory)
    wall = Wall(both, shown, width, aspect=0.8)
    for row in range(len(wall.variants)):
        panels = wall.panels(row, both.frame)
        limits = log_limits(pd.concat([frame["value"] for _, frame in panels]))
        for ax, frame in panels:
            heat_map(ax, frame, "position", limits)
            _write_ratio(ax, frame)
        if panels:
            axes = [ax for ax, _ in panels]
            colour_bar(wall.page, axes, r"rms of $\delta_{l,t}$", limits)
    wall.page.legends = [legend_off_scale(rows.frame)]
    wall.page.notes += [NOTE, *seed_note(rows, "geometric mean", "Colour")]
    return wall.close("position $t$", "$l$")


def _write_ratio(ax: Axes, frame: pd.DataFrame) -> None:
    """Position 0 over the others after the first block, in a corner of its panel, if known."""
    for ratio in frame.loc[frame["x"] == 1, "first_over_others"].dropna().unique():
        ax.text(
            0.97, 0.06, f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}", ha="right",
            transform=ax.transAxes, fontsize=6, gid="ratio",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8},
        )  # fmt: skip


def _with_theory(rows: SweepRows, theory: SweepRows | None) -> tuple[SweepRows, list[str]]:
    """Measured and predicted numbers together, told apart by ``shown``, and its values."""
    first, *later = (str(when) for when in levels(rows, "when"))
    parts = [rows.frame.assign(shown=rows.frame["when"].astype(str))]
    if theory is not None:
        parts.append(theory.frame.assign(shown=PREDICTED))
        later = [PREDICTED, *later]
    return rows.with_frame(pd.concat(parts, ignore_index=True)), [first, *later]
