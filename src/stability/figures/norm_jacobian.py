"""Spectral norm of each norm's Jacobian beside 1/sigma, and the error of its closed form."""

from matplotlib.figure import Figure

from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.probe_lines import COLUMNS, over_blocks
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

__all__ = ["COLUMNS"]

TABLE = "probes"
WHERE = {"probe": ["norm_jacobian"]}
STEPS = "ends"

QUANTITIES = {
    "spectral norm": Quantity(r"$\|J_N\|_2$", backward=True),
    "1/sigma": Quantity(r"$1/\sigma$"),
    "error": Quantity("largest error"),
}
ITEMS = {"spectral": "spectral norm", "inverse_sigma": "1/sigma", "error": "error"}
CHART = Chart(QUANTITIES, BLOCKS, across="quantity", down="when", layers=True)


def data(rows: SweepRows) -> SweepRows:
    """Means over tokens, with gamma = 1 and beta = 0; the error is in fp64."""
    return over_blocks(rows, "norm_jacobian", ITEMS)


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """Three panels side by side; at init above the end."""
    return draw_lines(rows, CHART, width).close("geometric mean")
