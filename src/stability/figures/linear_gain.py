"""Gain of each linear layer: rms of its output over rms of its input, by block."""

from matplotlib.figure import Figure

from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.probe_lines import COLUMNS, over_weights
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

__all__ = ["COLUMNS"]

TABLE = "probes"
WHERE = {"probe": ["linear_gain"]}
STEPS = "ends"

QUANTITIES = {"linear_gain": Quantity("rms out / rms in")}
CHART = Chart(QUANTITIES, BLOCKS, across="weight", down="when", layers=True)


def data(rows: SweepRows) -> SweepRows:
    """rms(output) / rms(input) of each linear layer of each block."""
    return over_weights(rows, "linear_gain", "linear_gain")


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """A panel per weight; at init above the end."""
    return draw_lines(rows, CHART, width).close("geometric mean")
