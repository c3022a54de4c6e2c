"""Variance of the residual stream, layer by step."""

import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing.heat import draw_maps, several_steps
from stability.figures.drawing.select import COMMON, over_seeds, require, together
from stability.figures.drawing.style import drawn
from stability.results.stream import block_outputs

TABLE = "layers"
COLUMNS = (*COMMON, "layer", "sublayer", "site", "kind", "var", "nonfinite")
WHERE = {"site": ["resid_post"], "kind": ["act"]}
STEPS = "all"


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Var(x_l) of block outputs x_1 .. x_L at every recorded step."""
    rows = block_outputs(frame[frame["kind"] == "act"]).rename(columns={"l": "x"})
    rows = several_steps(require(rows[rows["x"] > 0], "activations recorded at resid_post"))
    return over_seeds(together(rows), ["x", "step"], "var")


@drawn
def draw(frame: pd.DataFrame, width: float = 6.75) -> Figure:
    """One panel per variant."""
    return draw_maps(frame, r"variance of $x_l$", width)
