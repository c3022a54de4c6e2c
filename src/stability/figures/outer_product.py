"""Error of the weight gradient as a sum of outer products, by block."""

from matplotlib.figure import Figure

from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.probe_lines import COLUMNS, over_weights
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

__all__ = ["COLUMNS"]

TABLE = "probes"
WHERE = {"probe": ["outer_product"]}
STEPS = "ends"

QUANTITIES = {"outer_product": Quantity("relative error")}
CHART = Chart(QUANTITIES, BLOCKS, across="weight", down="when", layers=True)


def data(rows: SweepRows) -> SweepRows:
    """Relative Frobenius error of sum_t delta_t x_t^T against the gradient of each weight."""
    return over_weights(rows, "outer_product", "outer_product")


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """A panel per weight; at init above the end."""
    return draw_lines(rows, CHART, width).close("geometric mean")
