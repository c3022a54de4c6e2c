"""Weight gradient of the last block over that of the first, against depth."""

import numpy as np
from matplotlib.figure import Figure

from stability.figures.drawing import rounding
from stability.figures.drawing.layout import Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.rounding import with_rounding
from stability.figures.drawing.scales import whole_x
from stability.figures.drawing.select import COMMON, CannotDraw, ends, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.figures.drawing.weight_rows import first_weights, matrices
from stability.results.stream import l2, run_columns
from stability.results.sweep_rows import SweepRows

TABLE = "layers"
COLUMNS = (*COMMON, "depth", "layer", "sublayer", "numel", "nonfinite", "rms", *rounding.COLUMNS)
WHERE = ({"kind": ["weight_grad"]}, rounding.SCORES)
STEPS = "ends"
LABEL = r"$\|\partial\mathcal{L}/\partial{W}^{(L)}\|/\|\partial\mathcal{L}/\partial{W}^{(1)}\|$"
CHART = Chart(
    {"ratio": Quantity(LABEL, backward=True)}, "depth $L$", across="weight", down="when",
    without=("depth",),
)  # fmt: skip


def data(rows: SweepRows) -> SweepRows:
    """|dLoss/dW| in block L over that in block 1, for each weight matrix; above 1: top-heavy."""
    if rows.frame["depth"].nunique() < 2:
        raise CannotDraw("depth does not vary")
    frame = with_rounding(rows.frame)
    frame = matrices(frame[frame["kind"] == "weight_grad"])
    frame = require(frame, "weight gradients recorded (record.kinds)").sort_values("x")
    frame = ends(frame.assign(size=l2(frame)))
    by = frame.groupby([*run_columns(frame), "when", "weight"], observed=True)
    first = by.head(1)
    last = by["size"].transform("last").loc[first.index]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = first.assign(ratio=last / first["size"], x=first["depth"])
    found = over_seeds(found, rows.axes, ["when", "weight", "x"], "ratio")
    return rows.with_frame(found.assign(quantity="ratio"))


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """A panel per weight; at init above the end; both axes are logarithmic."""
    shown, notes = first_weights(rows)
    lines = draw_lines(shown, CHART, width)
    for ax, _ in lines.panels:
        whole_x(ax, sorted(int(d) for d in rows.frame["x"].unique()))
    return lines.close("geometric mean", *notes)
