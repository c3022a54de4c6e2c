"""Theory at infinite width against measurement, at init, a point for each block."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stability.figures import gradient, variance
from stability.figures.drawing import scales, style
from stability.figures.drawing.layout import Chart, Quantity, layout
from stability.figures.drawing.lines import Lines
from stability.figures.drawing.rounding import is_rounding
from stability.figures.drawing.select import CannotDraw, require
from stability.figures.drawing.style import drawn
from stability.figures.drawing.variants import is_number
from stability.results.sweep_rows import SweepRows

TABLE = "layers"
COLUMNS = (*dict.fromkeys((*variance.COLUMNS, *gradient.COLUMNS)),)
WHERE = {"site": ["resid_post", "scores"], "kind": ["grad", "act"]}
STEPS = "ends"
QUANTITIES = {
    "variance": Quantity(r"measured $\mathrm{Var}(x_l)$"),
    "all tokens": Quantity(r"measured $\|\delta_l\|$"),
    "median token": Quantity(r"measured $\|\delta_{l,t}\|$"),
}
MAX_ERRORS = 12
"""Points of a variant that have error bars; of more, some do."""


def data(rows: SweepRows) -> SweepRows:
    """Var(x_l), |delta_l| over all tokens and for the median token at init, l = 1 .. L."""
    stream = rows.frame[rows.frame["site"] == "resid_post"]
    found = [
        module.data(rows.with_frame(frame)).frame
        for module, frame in ((variance, stream), (gradient, rows.frame))
        if (frame["kind"] == ("act" if module is variance else "grad")).any()
    ]
    if not found:
        raise CannotDraw("no activations or gradients recorded at resid_post")
    frame = pd.concat(found, ignore_index=True)
    frame = frame[(frame["when"].astype(str) == "at init") & (frame["x"] > 0)]
    frame = require(frame[frame["quantity"].isin([*QUANTITIES])], "rows at init")
    return rows.with_frame(frame[~is_rounding(frame)])


@drawn
def draw(rows: SweepRows, width: float = 6.75, theory: SweepRows | None = None) -> Figure:
    """A panel per quantity, all depths in one, and the line of equality; bars: range of seeds."""
    if theory is None:
        raise CannotDraw("no theory for these runs")
    both = _joined(rows, theory)
    numbers = tuple(axis for axis in rows.axes if is_number(rows, axis))
    chart = Chart(QUANTITIES, "theory", across="quantity", without=numbers)
    lines = Lines(layout(both, chart, width), width)
    for place, (ax, panel) in enumerate(lines.panels):
        lines.label(ax, panel, place)
        limits = scales.log_limits(panel.frame[["x", "value", "low", "high"]])
        ax.set_xscale("log")
        scales.log_y(ax, limits)
        ax.set_xlim(*limits)
        scales.log_ticks(ax.xaxis, limits)
        ax.plot(limits, limits, color=style.GREY, linewidth=0.7, zorder=1)
        for look, line in lines.layout.curves(panel.frame):
            some = line.iloc[:: -(-len(line) // MAX_ERRORS)]
            spread = np.abs(some[["low", "high"]].to_numpy(float).T - some["value"].to_numpy(float))
            ax.errorbar(
                some["x"], some["value"], spread, color=look.color, marker=look.marker or "o",
                linestyle="none", elinewidth=0.7, markersize=3, alpha=0.8,
            )  # fmt: skip
    return lines.close("geometric mean", *_deviations(both.frame))


def _joined(rows: SweepRows, theory: SweepRows) -> SweepRows:
    """Points at which both are known and positive: ``x`` is the theory, ``value`` measured."""
    by = [*rows.axes, "quantity", "x"]
    predicted = theory.frame[[*by, "value"]].rename(columns={"value": "theory"})
    frame = rows.frame.merge(predicted, on=by).rename(columns={"x": "l", "theory": "x"})
    good = np.isfinite(frame["value"]) & np.isfinite(frame["x"])
    good &= (frame["value"] > 0) & (frame["x"] > 0)
    return rows.with_frame(require(frame[good], "block at which theory and measurement are known"))


def _deviations(frame: pd.DataFrame) -> list[str]:
    """How far the points lie from the line: median and largest factor, for each quantity."""
    factor = np.exp(np.abs(np.log(frame["value"] / frame["x"])))
    by = factor.groupby(frame["quantity"].astype(str), sort=False)
    said = [f"{name} {f.median():.3g} (largest {f.max():.3g})" for name, f in by]
    return [f"Median factor between theory and measurement: {'; '.join(said)}."]
