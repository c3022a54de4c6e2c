"""Rise of the loss when one block is removed, by block."""

from matplotlib.figure import Figure

from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.probe_lines import COLUMNS, over_blocks
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

__all__ = ["COLUMNS"]

TABLE = "probes"
WHERE = {"probe": ["lesion"]}
STEPS = "ends"

QUANTITIES = {
    "rise": Quantity("rise of the loss (nats per token)", log=False),
}
ITEMS = {"rise": "rise"}
CHART = Chart(QUANTITIES, BLOCKS, across="quantity", down="when", layers=True)


def data(rows: SweepRows) -> SweepRows:
    """Validation loss without block l minus that of the whole net."""
    return over_blocks(rows, "lesion", ITEMS, "median")


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """One panel; at init above the end."""
    return draw_lines(rows, CHART, width).close("median")
