"""Variance of the residual stream by layer."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing.lines import BLOCKS, Lines, Quantity
from stability.figures.drawing.select import COMMON, ends, over_seeds, require
from stability.figures.drawing.style import axes_of, drawn
from stability.results.stream import block_outputs

TABLE = "layers"
COLUMNS = (*COMMON, "layer", "sublayer", "site", "kind", "var", "nonfinite")
WHERE = {"site": ["resid_post"], "kind": ["act"]}
STEPS = "ends"
WHAT = "activations recorded at resid_post"


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Var(x_l) over batch, tokens, features: x_0, the embedding, and block outputs x_1 .. x_L.

    Of theory, ``low`` and ``high`` are two standard deviations of the logarithm over nets of the
    same width, where they are derived.
    """
    rows = require(frame[frame["kind"] == "act"], WHAT)
    rows = require(block_outputs(rows), WHAT).rename(columns={"l": "x"})
    found = over_seeds(ends(rows), ["when", "x"], "var").assign(quantity="variance")
    if "spread" not in rows:
        return found
    by = [*axes_of(found), "x"]
    spread = found[by].merge(rows[[*by, "spread"]], on=by, how="left")["spread"].to_numpy()
    return found.assign(
        low=found["value"] * np.exp(-2 * spread), high=found["value"] * np.exp(2 * spread)
    )


@drawn
def draw(frame: pd.DataFrame, width: float = 6.75, theory: pd.DataFrame | None = None) -> Figure:
    """Lines over blocks passed, on a log axis; at init and at the end."""
    what = {"variance": Quantity(r"variance of $x_l$")}
    lines = Lines(frame, what, BLOCKS, "when", width=width, layers=True, theory=theory)
    return lines.close("geometric mean")
