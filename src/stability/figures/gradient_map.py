"""Gradient with respect to the residual stream, layer by step."""

from matplotlib.figure import Figure

from stability.figures.drawing import rounding
from stability.figures.drawing.heat import draw_maps, several_steps
from stability.figures.drawing.rounding import with_rounding
from stability.figures.drawing.select import COMMON, common_steps, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.results.stream import block_outputs, l2
from stability.results.sweep_rows import SweepRows

TABLE = "layers"
COLUMNS = (*COMMON, "layer", "sublayer", "numel", "nonfinite", "rms", *rounding.COLUMNS)
WHERE = ({"site": ["resid_post"], "kind": ["grad"]}, rounding.SCORES)
STEPS = "all"


def data(rows: SweepRows) -> SweepRows:
    """L2 norm over all tokens of delta_l = dLoss/dx_l, l = 1 .. L, at every recorded step."""
    frame = with_rounding(rows.frame)
    frame = block_outputs(frame[frame["kind"] == "grad"]).rename(columns={"l": "x"})
    frame = several_steps(require(frame[frame["x"] > 0], "gradients recorded at resid_post"))
    frame = common_steps(frame.assign(size=l2(frame)), rows.axes)
    return rows.with_frame(over_seeds(frame, rows.axes, ["x", "step"], "size"))


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """One panel per variant."""
    return draw_maps(rows, r"$\|\delta_l\|$, all tokens", width)
