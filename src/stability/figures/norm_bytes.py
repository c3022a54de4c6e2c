"""Bytes that the operations of each norm move per token, by block."""

from matplotlib.figure import Figure

from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.probe_lines import COLUMNS, over_blocks
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

__all__ = ["COLUMNS"]

TABLE = "probes"
WHERE = {"probe": ["norm_bytes"]}
STEPS = "ends"

QUANTITIES = {
    "norm": Quantity("bytes per token"),
    "norm.out": Quantity("bytes per token, norm after the branch"),
}
ITEMS = {"norm": "norm", "norm.out": "norm.out"}
CHART = Chart(QUANTITIES, BLOCKS, across="quantity", down="when", layers=True)


def data(rows: SweepRows) -> SweepRows:
    """Bytes read and written by a norm's operations, forward and backward, per token."""
    return over_blocks(rows, "norm_bytes", ITEMS)


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """A panel per norm of a sublayer; at init above the end."""
    return draw_lines(rows, CHART, width).close("geometric mean")
