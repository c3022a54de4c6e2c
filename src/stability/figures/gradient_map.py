"""Gradient with respect to the residual stream, layer by step."""

import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing.heat import draw_maps, several_steps
from stability.figures.drawing.select import COMMON, over_seeds, require, together
from stability.figures.drawing.style import drawn
from stability.results.stream import block_outputs, l2

TABLE = "layers"
COLUMNS = (*COMMON, "layer", "sublayer", "site", "kind", "numel", "nonfinite", "rms")
WHERE = {"site": ["resid_post"], "kind": ["grad"]}
STEPS = "all"


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """L2 norm over all tokens of delta_l = dLoss/dx_l, l = 1 .. L, at every recorded step."""
    rows = block_outputs(frame[frame["kind"] == "grad"]).rename(columns={"l": "x"})
    rows = several_steps(require(rows[rows["x"] > 0], "gradients recorded at resid_post"))
    return over_seeds(together(rows.assign(size=l2(rows))), ["x", "step"], "size")


@drawn
def draw(frame: pd.DataFrame, width: float = 6.75) -> Figure:
    """One panel per variant."""
    return draw_maps(frame, r"$\|\delta_l\|$, all tokens", width)
