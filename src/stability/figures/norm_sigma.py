"""What norms multiply by, 1/sigma, by block."""

from matplotlib.figure import Figure

from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.probe_lines import COLUMNS, over_blocks
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

__all__ = ["COLUMNS"]

TABLE = "probes"
WHERE = {"probe": ["norm_sigma"]}
STEPS = "ends"

QUANTITIES = {
    "norm": Quantity(r"mean of $1/\sigma$"),
    "norm.out": Quantity(r"mean of $1/\sigma$, norm after the branch"),
}
ITEMS = {"norm": "norm", "norm.out": "norm.out"}
CHART = Chart(QUANTITIES, BLOCKS, across="quantity", down="when", layers=True)


def data(rows: SweepRows) -> SweepRows:
    """Mean over tokens of 1/sigma of each norm's input."""
    return over_blocks(rows, "norm_sigma", ITEMS)


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """A panel per norm of a sublayer; at init above the end."""
    return draw_lines(rows, CHART, width).close("geometric mean")
