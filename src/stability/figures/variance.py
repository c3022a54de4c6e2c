"""Variance of the residual stream by layer."""

import numpy as np
from matplotlib.figure import Figure

from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.select import COMMON, ends, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.results.stream import block_outputs
from stability.results.sweep_rows import SweepRows

TABLE = "layers"
COLUMNS = (*COMMON, "layer", "sublayer", "site", "kind", "var", "nonfinite")
WHERE = {"site": ["resid_post"], "kind": ["act"]}
STEPS = "ends"
WHAT = "activations recorded at resid_post"
CHART = Chart({"variance": Quantity(r"variance of $x_l$")}, BLOCKS, across="when", layers=True)


def data(rows: SweepRows) -> SweepRows:
    """Var(x_l) over batch, tokens, features: x_0, the embedding, and block outputs x_1 .. x_L.

    For theory, ``low`` and ``high`` are two standard deviations of the logarithm over nets of the
    same width, where they are derived.
    """
    frame = require(rows.frame[rows.frame["kind"] == "act"], WHAT)
    frame = require(block_outputs(frame), WHAT).rename(columns={"l": "x"})
    found = over_seeds(ends(frame), rows.axes, ["when", "x"], "var").assign(quantity="variance")
    if "spread" in frame:
        by = [*rows.axes, "x"]
        spread = found[by].merge(frame[[*by, "spread"]], on=by, how="left")["spread"].to_numpy()
        low, high = (found["value"] * np.exp(k * spread) for k in (-2, 2))
        found = found.assign(low=low, high=high)
    return rows.with_frame(found)


@drawn
def draw(rows: SweepRows, width: float = 6.75, theory: SweepRows | None = None) -> Figure:
    """Lines over blocks; at init and at the end."""
    return draw_lines(rows, CHART, width, theory).close("geometric mean")
