"""Gradient with respect to each weight matrix by layer."""

import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing.lines import BLOCKS, Lines, Quantity
from stability.figures.drawing.select import (
    COMMON,
    ends,
    first_weights,
    matrices,
    over_seeds,
    require,
)
from stability.figures.drawing.style import drawn
from stability.results.stream import l2

TABLE = "layers"
COLUMNS = (*COMMON, "layer", "sublayer", "site", "kind", "numel", "nonfinite", "rms")
WHERE = {"kind": ["weight_grad"]}
STEPS = "ends"


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """L2 norm of dLoss/dW, before clipping, of each weight matrix W of each block."""
    rows = matrices(frame[frame["kind"] == "weight_grad"])
    rows = require(rows, "weight gradients recorded (record.kinds)")
    rows = ends(rows.assign(size=l2(rows)))
    return over_seeds(rows, ["when", "weight", "x"], "size").assign(quantity="size")


@drawn
def draw(frame: pd.DataFrame, width: float = 6.75) -> Figure:
    """A panel per weight; at init above the end."""
    what = {"size": Quantity(r"$\|\partial\mathcal{L}/\partial W\|$", backward=True)}
    rows, notes = first_weights(frame)
    lines = Lines(rows, what, BLOCKS, "weight", "when", width, layers=True)
    return lines.close("geometric mean", *notes)
