"""Spectral norms of Jacobians of sublayers, branches and the rest of the net, by block."""

from matplotlib.figure import Figure

from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.probe_lines import COLUMNS, over_blocks
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

__all__ = ["COLUMNS"]

TABLE = "probes"
WHERE = {"probe": ["jacobian"]}
STEPS = "ends"

QUANTITIES = {
    "sublayer": Quantity(r"$\|\partial x_\mathrm{out}/\partial x_\mathrm{in}\|_2$"),
    "branch": Quantity(r"$\|J_f J_N\|_2$"),
    "block to output": Quantity(r"$\|\partial x_L/\partial x_{l-1}\|_2$"),
}
ITEMS = {"sublayer": "sublayer", "branch": "branch", "tail": "block to output"}
CHART = Chart(QUANTITIES, BLOCKS, across="quantity", down="when", layers=True)


def data(rows: SweepRows) -> SweepRows:
    """Spectral norms of the Jacobians of a sublayer, its branch, and the rest of the net."""
    return over_blocks(rows, "jacobian", ITEMS)


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """Three panels side by side; at init above the end."""
    return draw_lines(rows, CHART, width).close("geometric mean")
