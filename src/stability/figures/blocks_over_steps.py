"""Variance and gradient of five blocks over steps."""

from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing import rounding
from stability.figures.drawing.heat import several_steps
from stability.figures.drawing.layout import Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.rounding import with_rounding
from stability.figures.drawing.select import COMMON, common_steps, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.results.stream import block_outputs, l2, run_columns
from stability.results.sweep_rows import SweepRows

TABLE = "layers"
COLUMNS = (*COMMON, "layer", "sublayer", "numel", "nonfinite", "var", "rms", *rounding.COLUMNS)
WHERE = ({"site": ["resid_post"], "kind": ["act", "grad"]}, rounding.SCORES)
STEPS = "all"
QUANTITIES = {
    "variance": Quantity("variance of $x_l$"),
    "gradient": Quantity(r"$\|\delta_l\|$", backward=True),
}
CHART = Chart(QUANTITIES, "step", across="quantity")
PLACES = {0.0: "first block", 0.25: "L/4", 0.5: "L/2", 0.75: "3L/4", 1.0: "last block"}


def data(rows: SweepRows) -> SweepRows:
    """Var(x_l) and |delta_l| over all tokens at every recorded step, for five blocks.

    The axis ``block`` names them: the first, the last, and those at a quarter, half and three
    quarters of the depth.
    """
    frame = block_outputs(with_rounding(rows.frame))
    frame = require(frame[frame["l"] > 0], "activations or gradients recorded at resid_post")
    frame = _at_five_places(several_steps(frame.assign(size=l2(frame), x=frame["step"])))
    rows = replace(rows, axes=("block", *rows.axes))
    frame = common_steps(frame, rows.axes)
    parts = []
    for kind, column, name in (("act", "var", "variance"), ("grad", "size", "gradient")):
        mine = frame[frame["kind"] == kind]
        if len(mine):
            parts.append(over_seeds(mine, rows.axes, ["x"], column).assign(quantity=name))
    return rows.with_frame(pd.concat(parts, ignore_index=True))


def _at_five_places(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of the five blocks of each run, named; a shallow net has fewer."""
    depth = frame.groupby(run_columns(frame), observed=True)["l"].transform("max")
    kept, seen = [], pd.Series(False, index=frame.index)
    for share in (1.0, 0.0, 0.5, 0.25, 0.75):
        here = frame["l"] == (1 + share * (depth - 1)).round()
        kept.append(frame[here & ~seen].assign(block=PLACES[share]))
        seen |= here
    found = pd.concat(kept)
    return found.assign(block=pd.Categorical(found["block"], [*PLACES.values()]))


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """Variance beside gradient; a colour for each block."""
    return draw_lines(rows, CHART, width).close("geometric mean")
