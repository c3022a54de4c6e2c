"""Gradient with respect to each weight matrix by layer."""

from matplotlib.figure import Figure

from stability.figures.drawing import rounding
from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.rounding import with_rounding
from stability.figures.drawing.select import COMMON, ends, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.figures.drawing.weight_rows import first_weights, matrices
from stability.results.stream import l2
from stability.results.sweep_rows import SweepRows

TABLE = "layers"
COLUMNS = (*COMMON, "layer", "sublayer", "numel", "nonfinite", "rms", *rounding.COLUMNS)
WHERE = ({"kind": ["weight_grad"]}, rounding.SCORES)
STEPS = "ends"
CHART = Chart(
    {"size": Quantity(r"$\|\partial\mathcal{L}/\partial W\|$", backward=True)},
    BLOCKS, across="weight", down="when", layers=True,
)  # fmt: skip


def data(rows: SweepRows) -> SweepRows:
    """L2 norm of dLoss/dW, before clipping, of each weight matrix W of each block."""
    frame = with_rounding(rows.frame)
    frame = matrices(frame[frame["kind"] == "weight_grad"])
    frame = require(frame, "weight gradients recorded (record.kinds)")
    frame = ends(frame.assign(size=l2(frame)))
    found = over_seeds(frame, rows.axes, ["when", "weight", "x"], "size")
    return rows.with_frame(found.assign(quantity="size"))


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """A panel per weight; at init above the end."""
    shown, notes = first_weights(rows)
    return draw_lines(shown, CHART, width).close("geometric mean", *notes)
