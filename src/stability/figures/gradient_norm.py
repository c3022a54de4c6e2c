"""Norm of the whole gradient over steps, with its spikes."""

from matplotlib.figure import Figure

from stability.figures.drawing.layout import Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.select import COMMON, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

TABLE = "steps"
COLUMNS = (*COMMON, "grad_norm", "spike")
WHERE: dict[str, list[str]] = {}
STEPS = "all"
QUANTITIES = {"norm": Quantity(r"$\|\partial\mathcal{L}/\partial\theta\|$", backward=True)}
CHART = Chart(QUANTITIES, "step", across="quantity")


def data(rows: SweepRows) -> SweepRows:
    """L2 norm over all parameters, before clipping, at every step.

    ``spikes`` counts the seeds whose loss or gradient norm lay far above its recent median there.
    """
    frame = require(rows.frame[rows.frame["grad_norm"].notna()], "gradient norms of steps")
    frame = frame.assign(x=frame["step"].astype(int), spike=frame["spike"].eq(True))
    found = over_seeds(frame, rows.axes, ["x"], "grad_norm").assign(quantity="norm")
    by = [*rows.axes, "x"]
    spikes = frame.groupby(by, observed=True)["spike"].sum().rename("spikes").reset_index()
    return rows.with_frame(found.merge(spikes, on=by, how="left"))


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """One panel; stars at the steps at which a seed has a spike."""
    lines = draw_lines(rows, CHART, width)
    for ax, panel in lines.panels:
        for look, line in lines.layout.curves(panel.frame):
            at = line[(line["spikes"] > 0) & (line["value"] > 0)]
            if len(at):
                ax.plot(
                    at["x"], at["value"], "*", color=look.color, markersize=6, gid="*", zorder=3
                )  # fmt: skip
    return lines.close("geometric mean")
