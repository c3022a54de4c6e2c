"""Gradient with respect to the residual stream, by layer and token position."""

import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing import panels, style
from stability.figures.drawing.heat import heat_map, scale, special
from stability.figures.drawing.scales import log_limits
from stability.figures.drawing.select import COMMON, ends, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.figures.drawing.wall import Wall

TABLE = "probes"
COLUMNS = (*COMMON, "layer", "sublayer", "probe", "item", "value")
WHERE = {"probe": ["token_grad"]}
STEPS = "ends"
PREDICTED = "at init, theory"
NOTE = (
    "Gradient, in nats per unit, of the mean loss with respect to the stream after l blocks at "
    "position t; root mean square over sequences and features. Each row has its own scale."
)


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Rms of dLoss/dx_l at each position, l = 1 .. L, at the first and the last recorded step."""
    blocks = (frame["layer"] >= 0) & (frame["sublayer"] != "attn")
    rows = frame[(frame["probe"] == "token_grad") & blocks]
    rows = rows[rows["item"].astype(str).str.isdigit()]
    rows = require(rows, "gradient by token recorded (record.probes=[token_grad])")
    rows = rows.assign(
        x=rows["layer"].astype(int) + 1,
        position=rows["item"].astype(int),
        rms=rows["value"].astype(float).pow(0.5),
    )
    return over_seeds(ends(rows), ["when", "x", "position"], "rms")


@drawn
def draw(frame: pd.DataFrame, width: float = 6.75, theory: pd.DataFrame | None = None) -> Figure:
    """A row per variant; for each value of one more axis init, theory and end side by side."""
    both, kinds = beside(frame, theory)
    wall = Wall(both, kinds, width, aspect=0.8)
    for row in range(len(wall.rows)):
        cells = wall.cells(row, both)
        limits = log_limits(pd.concat([rows["value"] for _, rows in cells]))
        for ax, rows in cells:
            heat_map(ax, rows, "position", limits)
        if cells:
            axes = [ax for ax, _ in cells]
            scale(wall.page, axes, r"rms of $\delta_{l,t}$", limits)
    wall.page.legends = [special(frame)]
    wall.page.notes += [NOTE, *panels.seed_note(frame, "geometric mean", "Colour")]
    return wall.close("position $t$", "$l$")


def beside(frame: pd.DataFrame, theory: pd.DataFrame | None) -> tuple[pd.DataFrame, list[str]]:
    """Measured and predicted numbers in one frame, told apart by ``shown``, and its values."""
    first, *later = (str(when) for when in style.levels(frame, "when"))
    parts = [frame.assign(shown=frame["when"].astype(str))]
    if theory is not None:
        parts.append(theory.assign(shown=PREDICTED))
        first, later = first, [PREDICTED, *later]
    both = pd.concat(parts, ignore_index=True)
    both.attrs = frame.attrs
    return both, [first, *later]
