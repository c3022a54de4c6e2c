"""Ratios of last to first block against depth, and the law that they follow."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stability.figures.drawing import rounding
from stability.figures.drawing.layout import Chart, Curve, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.rounding import with_rounding
from stability.figures.drawing.scales import whole_x
from stability.figures.drawing.select import COMMON, CannotDraw, ends, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.figures.drawing.variant_looks import MAX_LINES
from stability.results.fits import better_law, slope_margin
from stability.results.stream import block_outputs, l2, run_columns
from stability.results.sweep_rows import SweepRows

TABLE = "layers"
COLUMNS = (
    *(*COMMON, "depth", "layer", "sublayer", "numel", "nonfinite"),
    *("var", "rms", "token_rms_median", *rounding.COLUMNS),
)
WHERE = ({"site": ["resid_post"], "kind": ["act", "grad"]}, rounding.SCORES)
STEPS = "ends"

QUANTITIES = {
    "variance": Quantity(r"$\mathrm{Var}(x_L)\,/\,\mathrm{Var}(x_1)$"),
    "gradient": Quantity(r"$\|\delta_1\|\,/\,\|\delta_L\|$", backward=True),
    "gradient, median token": Quantity(r"$\|\delta_{1,t}\|\,/\,\|\delta_{L,t}\|$", backward=True),
}
CHART = Chart(QUANTITIES, "depth $L$", across="quantity", down="when", without=("depth",))

MIN_DEPTHS, MIN_SEEDS = 5, 2
"""Depths and seeds that a law needs: three depths lie close to either law, and one seed has no
spread."""
FLAT = 1.1
"""A fit that changes by less than this factor over all depths is flat."""
MISFIT = 2.0
"""A law from which a point deviates by more than this factor is none."""


class Label(NamedTuple):
    """The name of a law, written beside the end of its line."""

    height: float
    """On the vertical axis."""
    text: str
    colour: str


def data(rows: SweepRows) -> SweepRows:
    """Var(x_L)/Var(x_1), |delta_1|/|delta_L| for all tokens and for the median token, by depth L.

    ``law`` is the law of growth, if any, that the geometric means follow (`fits.better_law`): c L^a
    with a = ``exponent``, or c e^(b L) with b = ``rate``; ``log_factor`` is ln c, ``margin`` half
    the 95% interval of the slope. ``fitted`` says which depths count: those where every seed
    is finite; not depth 1, where each ratio is 1 by definition. Fewer than `MIN_DEPTHS` of them,
    fewer than `MIN_SEEDS` seeds or a point off by `MISFIT` have no law; ``flat`` is one of its own.
    """
    if rows.frame["depth"].nunique() < 2:
        raise CannotDraw("depth does not vary")
    frame = block_outputs(with_rounding(rows.frame)).assign(size=l2)
    frame = ends(require(frame[frame["l"] > 0], "activations or gradients recorded at resid_post"))
    parts = [
        _ratio(frame, rows.axes, "act", "var", "variance"),
        _ratio(frame, rows.axes, "grad", "size", "gradient"),
        _ratio(frame, rows.axes, "grad", "token_rms_median", "gradient, median token"),
    ]
    found = pd.concat([p for p in parts if len(p)], ignore_index=True)
    return rows.with_frame(_with_laws(found, rows.axes))


def _ratio(
    frame: pd.DataFrame, axes: Sequence[str], kind: str, column: str, quantity: str
) -> pd.DataFrame:
    """Ratio of the outer blocks' values per run and end, averaged over seeds.

    Last over first for activations, first over last for gradients: both grow with the depth that
    the signal has passed.
    """
    mine = frame[frame["kind"] == kind].sort_values("l")
    if not mine[column].notna().any():
        return mine.iloc[:0]
    by = mine.groupby([*run_columns(mine), "when"], observed=True)
    outer = by.head(1).assign(x=lambda f: f["depth"])
    last = by[column].transform(lambda values: values.iloc[-1]).loc[outer.index]
    first = outer[column]
    with np.errstate(divide="ignore", invalid="ignore"):
        outer["ratio"] = last / first if kind == "act" else first / last
    outer["nonfinite"] = by["nonfinite"].transform("max").loc[outer.index]
    return over_seeds(outer, axes, ["when", "x"], "ratio").assign(quantity=quantity)


def _with_laws(frame: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """Columns ``law``, ``exponent``, ``rate``, ``log_factor`` and ``fitted``; see `data`."""
    by = [a for a in axes if a != "depth"] + ["when", "quantity"]
    laws = []
    for _, line in frame.groupby(by, observed=True, dropna=False):
        good = np.isfinite(line["value"]) & (line["value"] > 0) & (line["x"] > 1)
        good &= (line["not_finite"] == 0) & (line["seeds"] == line["runs"])
        found: dict[str, Any] = {"law": "", "exponent": np.nan, "rate": np.nan}
        found |= {"margin": np.nan, "log_factor": np.nan, "fitted": False}
        if (line["runs"] >= MIN_SEEDS).all() and line.loc[good, "x"].nunique() >= MIN_DEPTHS:
            found |= _law_of(line[good], good)
        laws.append(pd.DataFrame(found, index=line.index))
    return frame.join(pd.concat(laws))


def _law_of(points: pd.DataFrame, fitted: pd.Series) -> dict[str, Any]:
    """The law of these points, as columns; empty where there is none."""
    law, fit = better_law(points["x"], points["value"])
    x = points["x"].to_numpy(float)
    x = np.log(x) if law == "power" else x
    change = fit.slope * x
    off = np.log(points["value"].to_numpy(float)) - fit.intercept - change
    if np.abs(off).max() > np.log(MISFIT):
        return {}
    slope = "exponent" if law == "power" else "rate"
    found = {slope: fit.slope, "margin": slope_margin(x, fit), "log_factor": fit.intercept}
    flat = np.ptp(change) < np.log(FLAT)
    return {"law": "flat" if flat else law, **found, "fitted": fitted}


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """Log-log; at init above the end; thin lines are the laws, named beside their ends."""
    lines = draw_lines(rows, CHART, width)
    depths = sorted(int(d) for d in rows.frame["x"].unique())
    for ax, panel in lines.panels:
        whole_x(ax, depths)
        room = min(0.45, 0.36 / (width / lines.layout.grid.columns - 0.5))  # for the laws
        ax.set_xlim(right=depths[-1] * (depths[-1] / depths[0]) ** (room / (1 - room)))
        curves = lines.layout.curves(panel.frame)
        labels = [_law(ax, curve) for curve in curves if curve.frame["fitted"].any()]
        if len(labels) <= MAX_LINES:
            _write(ax, depths[-1], labels)
    return lines.close("geometric mean", *_said_of_laws(rows.frame))


def _said_of_laws(frame: pd.DataFrame) -> list[str]:
    """What the thin lines are, or why there is none."""
    if not frame["fitted"].any():
        few = frame["x"].nunique() < MIN_DEPTHS or (frame["runs"] < MIN_SEEDS).any()
        need = f"a fit needs {MIN_DEPTHS} depths and {MIN_SEEDS} seeds"
        return [f"No law is fitted: {need}."] if few else []
    return [
        "Thin lines: fits of $c\\,L^a$, or of $c\\,e^{bL}$ where that suits better, with 95% "
        f"intervals of the slope; flat: less than {FLAT - 1:.0%} change over all depths."
    ]


def _law(ax: Axes, curve: Curve) -> Label:
    """Draw a line's law over the depths it is fitted to; return its name at its last value."""
    line, colour = curve.frame, curve.look.color
    at = line.loc[line["fitted"], "x"].to_numpy(float)
    x, first = np.geomspace(at.min(), at.max(), 50), line.iloc[0]
    power = np.isfinite(first["exponent"])
    log_y = first["exponent"] * np.log(x) if power else first["rate"] * x
    slope = _with_margin(first["exponent" if power else "rate"], first["margin"])
    name = f"$L^{{{slope}}}$" if power else f"$e^{{({slope})L}}$"
    name = "flat" if first["law"] == "flat" else name
    log_y += first["log_factor"]
    low, high = np.log(ax.get_ylim())
    y = np.exp(np.clip(log_y, low, high))
    inside = (log_y >= low) & (log_y <= high)
    ax.plot(x, np.where(inside, y, np.nan), color=colour, linewidth=0.6, alpha=0.7, gid="law")
    return Label(float(y[-1]), name, colour)


def _with_margin(slope: float, margin: float) -> str:
    """A slope and half its interval, to the digits that the interval has: 1.10 and 0.05."""
    digits = int(np.clip(-np.floor(np.log10(max(margin, 1e-3))), 1, 3))
    return f"{slope:.{digits}f} \\pm {margin:.{digits}f}"


def _write(ax: Axes, depth: int, labels: list[Label]) -> None:
    """Laws beside the ends of their lines, moved apart where they would overlap."""
    low, high = np.log10(ax.get_ylim())
    heights = [(np.log10(label.height) - low) / (high - low) for label in labels]
    places = [float(np.clip(height, 0.03, 0.97)) for height in heights]
    gap = min(0.09, 0.94 / max(len(labels) - 1, 1))
    order = sorted(range(len(labels)), key=lambda i: places[i])
    spread: list[float] = []
    for i in order:
        spread.append(max(places[i], spread[-1] + gap) if spread else places[i])
    over = max(0.0, spread[-1] - 0.97) if spread else 0.0
    for i, y in zip(order, spread, strict=True):
        ax.annotate(
            labels[i].text, (depth, y - over), xycoords=ax.get_xaxis_transform(), xytext=(4, 0),
            textcoords="offset points", fontsize=6, va="center",
            color=labels[i].colour,
        )  # fmt: skip
