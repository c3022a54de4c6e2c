"""Attention by layer: its largest logit and its entropy."""

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing.lines import Lines, Quantity
from stability.figures.drawing.select import COMMON, ends, over_seeds, require
from stability.figures.drawing.style import drawn

TABLE = "layers"
COLUMNS = (
    *(*COMMON, "layer", "site", "kind", "mean", "absmax", "nonfinite"),
    *("model.context", "model.causal"),
)
WHERE = {"site": ["scores", "attn_rows"], "kind": ["act"]}
STEPS = "ends"
LARGEST, ENTROPY = "largest logit", "entropy"


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Largest |q k|/sqrt(K), and mean entropy in nats of the rows of the attention matrix.

    ``bound`` is the entropy of uniform attention: ln T; if causal, the mean of ln t over t = 1..T.
    """
    rows = require(
        frame[frame["kind"] == "act"], "attention recorded (model.sublayers, record.sites)"
    )
    rows = ends(rows.assign(x=rows["layer"].astype(int) + 1, bound=_bound(rows)))
    parts = []
    for site, column, name in (("scores", "absmax", LARGEST), ("attn_rows", "mean", ENTROPY)):
        centre = "geometric" if name == LARGEST else "median"
        found = over_seeds(rows[rows["site"] == site], ["when", "bound", "x"], column, centre)
        parts.append(found.assign(quantity=name))
    return pd.concat(parts, ignore_index=True)


def _bound(rows: pd.DataFrame) -> pd.Series:
    causal = {t: math.lgamma(t + 1) / t for t in rows["model.context"].unique()}
    uniform = np.log(rows["model.context"])
    return rows["model.context"].map(causal).where(rows["model.causal"].astype(bool), uniform)


@drawn
def draw(frame: pd.DataFrame, width: float = 6.75) -> Figure:
    """Logit beside entropy; at init above the end."""
    top = 1.1 * float(frame["bound"].max())
    what = {
        LARGEST: Quantity(r"max $|q\cdot k|/\sqrt{K}$"),
        ENTROPY: Quantity(
            "entropy (nats)",
            log=False,
            limits=(0.0, top),
            guides=lambda rows: [(b, "uniform attention") for b in rows["bound"].unique()],
        ),
    }
    lines = Lines(frame, what, "block", "quantity", "when", width, layers=True)
    return lines.close("geometric mean (entropy: median)")
