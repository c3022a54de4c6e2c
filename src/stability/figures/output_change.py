"""How far the output moves when each weight gets 1% noise, over steps."""

from matplotlib.figure import Figure

from stability.figures.drawing.layout import Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.probe_lines import COLUMNS, over_steps
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

__all__ = ["COLUMNS"]

TABLE = "probes"
WHERE = {"probe": ["output_change"]}
STEPS = "all"

QUANTITIES = {"change": Quantity(r"$\|F(W)-F(W+\mathrm{noise})\|^2$")}
CHART = Chart(QUANTITIES, "step", across="quantity")


def data(rows: SweepRows) -> SweepRows:
    """|F(W) - F(W + noise)|^2 of what the head reads, mean over tokens and draws."""
    return over_steps(rows, "output_change", "change", "geometric")


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """One panel; a mark at each recorded step."""
    return draw_lines(rows, CHART, width).close("geometric mean")
