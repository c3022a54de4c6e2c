"""Variance of the residual stream by layer."""

import pandas as pd
from matplotlib.figure import Figure

from stability.figures.lines import BLOCKS, Lines, Quantity
from stability.figures.select import COMMON, ends, over_seeds, require
from stability.figures.style import drawn
from stability.index import block_outputs

TABLE = "layers"
COLUMNS = (*COMMON, "layer", "sublayer", "site", "kind", "var", "nonfinite")
WHERE = {"site": ["resid_post"], "kind": ["act"]}
STEPS = "ends"
WHAT = "activations recorded at resid_post"


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Var(x_l) over batch, tokens, features: x_0, the embedding, and block outputs x_1 .. x_L."""
    rows = require(frame[frame["kind"] == "act"], WHAT)
    rows = require(block_outputs(rows), WHAT).rename(columns={"l": "x"})
    return over_seeds(ends(rows), ["when", "x"], "var").assign(quantity="variance")


@drawn
def draw(frame: pd.DataFrame, width: float = 6.75, theory: pd.DataFrame | None = None) -> Figure:
    """Lines over blocks passed, on a log axis; at init and at the end."""
    what = {"variance": Quantity(r"variance of $x_l$")}
    lines = Lines(frame, what, BLOCKS, "when", width=width, layers=True, theory=theory)
    return lines.close("geometric mean")
