"""How far training has moved the output, over steps."""

from matplotlib.figure import Figure

from stability.figures.drawing.layout import Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.probe_lines import COLUMNS, over_steps
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

__all__ = ["COLUMNS"]

TABLE = "probes"
WHERE = {"probe": ["model_update"]}
STEPS = "all"

QUANTITIES = {"change": Quantity(r"$\|F(\theta_t)-F(\theta_0)\|$", log=False)}
CHART = Chart(QUANTITIES, "step", across="quantity")


def data(rows: SweepRows) -> SweepRows:
    """|F(theta_t) - F(theta_0)| of what the head reads, root mean square over tokens."""
    return over_steps(rows, "model_update", "change", "median")


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """One panel; a mark at each recorded step."""
    return draw_lines(rows, CHART, width).close("median")
