"""Variance of the residual stream, layer by step."""

from matplotlib.figure import Figure

from stability.figures.drawing.heat import draw_maps, several_steps
from stability.figures.drawing.select import COMMON, common_steps, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.results.stream import block_outputs
from stability.results.sweep_rows import SweepRows

TABLE = "layers"
COLUMNS = (*COMMON, "layer", "sublayer", "site", "kind", "var", "nonfinite")
WHERE = {"site": ["resid_post"], "kind": ["act"]}
STEPS = "all"


def data(rows: SweepRows) -> SweepRows:
    """Var(x_l) of block outputs x_1 .. x_L at every recorded step."""
    frame = block_outputs(rows.frame[rows.frame["kind"] == "act"]).rename(columns={"l": "x"})
    frame = several_steps(require(frame[frame["x"] > 0], "activations recorded at resid_post"))
    frame = common_steps(frame, rows.axes)
    return rows.with_frame(over_seeds(frame, rows.axes, ["x", "step"], "var"))


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """One panel per variant."""
    return draw_maps(rows, r"variance of $x_l$", width)
