"""Size of an update against its weight, by layer."""

import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.select import COMMON, CannotDraw, ends, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.figures.drawing.weight_rows import first_weights, matrices
from stability.results.stream import run_columns
from stability.results.sweep_rows import SweepRows

TABLE = "layers"
COLUMNS = (*COMMON, "layer", "sublayer", "site", "kind", "numel", "rms")
WHERE = {"kind": ["weight", "update"]}
STEPS = "ends"

HEALTHY = 1e-3
"""A rule of thumb for Adam, drawn as a guide (Karpathy, micrograd lectures, 2022)."""
RATIO = Quantity("update / weight", guides=lambda rows: [(HEALTHY, "$10^{-3}$")])
CHART = Chart({"ratio": RATIO}, BLOCKS, across="weight", down="when", layers=True)


def data(rows: SweepRows) -> SweepRows:
    """Rms of the step's change over rms of the weight it changed, for each weight matrix."""
    frame = matrices(_applied(rows.frame))
    place = [*run_columns(frame), "step", "weight", "x"]
    sizes = frame.pivot_table("rms", place, "kind", observed=True, dropna=False)
    if not {"weight", "update"} <= set(sizes):
        raise CannotDraw("no weights and updates recorded (record.kinds, train.steps > 0)")
    ratio = (sizes["update"] / sizes["weight"]).rename("ratio").dropna().reset_index()
    kept = frame[frame["kind"] == "update"].merge(ratio, on=place)
    kept = ends(require(kept, "updates recorded (record.kinds, train.steps > 0)"))
    found = over_seeds(kept, rows.axes, ["when", "weight", "x"], "ratio")
    return rows.with_frame(found.assign(quantity="ratio"))


def _applied(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows without the step at which a run diverged: its update was not made."""
    last = frame["step"] == frame.groupby("run", observed=True)["step"].transform("max")
    return frame[~((frame["status"] == "diverged") & last)]


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """A panel per weight; at init above the end."""
    shown, notes = first_weights(rows)
    return draw_lines(shown, CHART, width).close("geometric mean", *notes)
