"""How alike tokens are: mean cosine between the tokens of a sequence, by block."""

from matplotlib.figure import Figure

from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.probe_lines import COLUMNS, over_blocks
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

__all__ = ["COLUMNS"]

TABLE = "probes"
WHERE = {"probe": ["token_cosine"]}
STEPS = "ends"

QUANTITIES = {
    "stream": Quantity("cosine of $x_l$", log=False, limits=(-1.03, 1.03)),
    "gradient": Quantity(r"cosine of $\delta_l$", log=False, limits=(-1.03, 1.03), backward=True),
}
ITEMS = {"act": "stream", "grad": "gradient"}
CHART = Chart(QUANTITIES, BLOCKS, across="quantity", down="when", layers=True)


def data(rows: SweepRows) -> SweepRows:
    """Mean cosine of the angle between two tokens of a sequence, of x_l and of delta_l."""
    return over_blocks(rows, "token_cosine", ITEMS, "median")


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """Stream beside gradient; at init above the end."""
    return draw_lines(rows, CHART, width).close("median")
