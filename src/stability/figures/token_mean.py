"""How far from centred the inputs of norms are, by block."""

from matplotlib.figure import Figure

from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.probe_lines import COLUMNS, over_blocks
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

__all__ = ["COLUMNS"]

TABLE = "probes"
WHERE = {"probe": ["token_mean"]}
STEPS = "ends"

QUANTITIES = {
    "norm": Quantity("|mean| / std"),
    "norm.out": Quantity("|mean| / std, norm after the branch"),
}
ITEMS = {"norm": "norm", "norm.out": "norm.out"}
CHART = Chart(QUANTITIES, BLOCKS, across="quantity", down="when", layers=True)


def data(rows: SweepRows) -> SweepRows:
    """Mean over tokens of |mean| / std over the features of a norm's input."""
    return over_blocks(rows, "token_mean", ITEMS)


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """A panel per norm of a sublayer; at init above the end."""
    return draw_lines(rows, CHART, width).close("geometric mean")
