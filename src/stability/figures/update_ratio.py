"""Size of an update against its weight, by layer."""

import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing.lines import BLOCKS, Lines, Quantity
from stability.figures.drawing.select import (
    COMMON,
    ends,
    first_weights,
    matrices,
    over_seeds,
    require,
)
from stability.figures.drawing.style import drawn

TABLE = "layers"
COLUMNS = (*COMMON, "layer", "sublayer", "site", "kind", "numel", "rms")
WHERE = {"kind": ["weight", "update"]}
STEPS = "ends"

HEALTHY = 1e-3
"""A rule of thumb for Adam, drawn as a guide (Karpathy, micrograd lectures, 2022)."""


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Rms of the step's change over rms of the weight it changed, for each weight matrix."""
    rows = matrices(_made(frame))
    sizes = rows.pivot_table(
        "rms", ["run", "step", "weight", "x"], "kind", observed=True, dropna=False
    )
    if not {"weight", "update"} <= set(sizes):
        require(rows.iloc[:0], "weights and updates recorded (record.kinds, train.steps > 0)")
    ratio = (sizes["update"] / sizes["weight"]).rename("ratio").dropna().reset_index()
    kept = rows[rows["kind"] == "update"].merge(ratio, on=["run", "step", "weight", "x"])
    kept.attrs = frame.attrs
    kept = ends(require(kept, "updates recorded (record.kinds, train.steps > 0)"))
    return over_seeds(kept, ["when", "weight", "x"], "ratio").assign(quantity="ratio")


def _made(frame: pd.DataFrame) -> pd.DataFrame:
    """Without the step at which a run diverged, whose update was withheld."""
    last = frame["step"] == frame.groupby("run", observed=True)["step"].transform("max")
    return frame[~((frame["status"] == "diverged") & last)]


@drawn
def draw(frame: pd.DataFrame, width: float = 6.75) -> Figure:
    """A panel per weight; at init above the end."""
    guide = [(HEALTHY, "$10^{-3}$")]
    what = {"ratio": Quantity("update / weight", guides=lambda rows: guide)}
    rows, notes = first_weights(frame)
    lines = Lines(rows, what, BLOCKS, "weight", "when", width, layers=True)
    return lines.close("geometric mean", *notes)
