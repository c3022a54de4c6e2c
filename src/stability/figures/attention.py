"""Attention by layer: its largest logit and its entropy."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stability.config.names import STACKS
from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.select import COMMON, ends, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

TABLE = "layers"
COLUMNS = (
    *(*COMMON, "layer", "sublayer", "site", "kind", "mean", "absmax", "nonfinite"),
    *("model.context", "model.causal"),
)
WHERE = {"site": ["scores", "attn_rows"], "kind": ["act"]}
STEPS = "ends"
LARGEST, ENTROPY = "largest logit", "entropy"


def data(rows: SweepRows) -> SweepRows:
    """Largest |q k|/sqrt(K), and mean entropy in nats of the rows of the attention matrix.

    ``bound`` is the entropy of uniform attention: ln T; if causal, the mean of ln t over t = 1..T;
    null for an external model. Attention to another stack has lines of its own.
    """
    rows = _cross_apart(rows)
    frame = rows.frame[rows.frame["kind"] == "act"]
    frame = require(frame, "attention recorded (model.sublayers, record.sites)")
    frame = ends(frame.assign(x=frame["layer"].astype(int) + 1, bound=_bound(frame)))
    parts = []
    for site, column, name in (("scores", "absmax", LARGEST), ("attn_rows", "mean", ENTROPY)):
        centre = "geometric" if name == LARGEST else "median"
        here = frame[frame["site"] == site]
        found = over_seeds(here, rows.axes, ["when", "bound", "x"], column, centre)
        parts.append(found.assign(quantity=name))
    return rows.with_frame(pd.concat(parts, ignore_index=True))


def _cross_apart(rows: SweepRows) -> SweepRows:
    """Rows in which attention to another stack is a variant, told apart by the axis ``stack``."""
    cross = rows.frame["sublayer"].astype(str) == "cross_attn"
    if not cross.any():
        return rows
    stack = rows.frame["stack"].astype(str) if "stack" in rows.frame else "attention"
    names = pd.Series(stack, index=rows.frame.index)
    names = names.mask(cross, names + ", cross-attention")
    order = [*dict.fromkeys([*STACKS, *sorted(names.unique())])]
    frame = rows.frame.assign(stack=pd.Categorical(names, order))
    return replace(rows, frame=frame, axes=tuple(dict.fromkeys((*rows.axes, "stack"))))


def _bound(frame: pd.DataFrame) -> pd.Series:
    context = frame["model.context"].astype(float)
    causal = {t: math.lgamma(t + 1) / t for t in context.dropna().unique()}
    return context.map(causal).where(frame["model.causal"].astype(bool), np.log(context))


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """Logit beside entropy; at init above the end."""
    entropies = rows.frame.loc[rows.frame["quantity"] == ENTROPY, "high"]
    top = 1.1 * float(np.nanmax([rows.frame["bound"].max(), entropies.max()]))
    known = rows.frame["bound"].notna().any()  # else a model with a scale of its own
    quantities = {
        LARGEST: Quantity(r"max $|q\cdot k|/\sqrt{K}$" if known else "max |logit|"),
        ENTROPY: Quantity(
            "entropy (nats)",
            log=False,
            limits=(0.0, top),
            guides=lambda rows: [(b, "uniform attention") for b in rows["bound"].dropna().unique()],
        ),
    }
    chart = Chart(quantities, BLOCKS, across="quantity", down="when", layers=True)
    return draw_lines(rows, chart, width).close("geometric mean (entropy: median)")
