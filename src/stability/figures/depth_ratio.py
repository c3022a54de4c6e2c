"""Ratios of last to first block against depth, with fitted exponents."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from stability.figures.lines import Lines, Quantity
from stability.figures.roles import MAX_LINES
from stability.figures.select import COMMON, CannotFill, ends, over_seeds, require
from stability.figures.style import axes_of, drawn
from stability.index import block_outputs, l2

TABLE = "layers"
COLUMNS = (
    *(*COMMON, "depth", "layer", "sublayer", "site", "kind", "numel", "nonfinite"),
    *("var", "rms", "token_rms_median"),
)
WHERE = {"site": ["resid_post"], "kind": ["act", "grad"]}
STEPS = "ends"

QUANTITIES = {
    "variance": Quantity(r"$\mathrm{Var}(x_L)\,/\,\mathrm{Var}(x_1)$"),
    "gradient": Quantity(r"$\|\delta_1\|\,/\,\|\delta_L\|$"),
    "gradient, median token": Quantity(
        r"median$_t\,\|\delta_{1,t}\|\,/\,$median$_t\,\|\delta_{L,t}\|$"
    ),
}


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Var(x_L)/Var(x_1), |delta_1|/|delta_L| for all tokens and for the median token, by depth L.

    ``exponent`` is the slope of the least-squares line through (ln L, ln value) of the geometric
    means, ``factor`` its value at L = 1; depth 1, where each ratio is 1 by definition, is left out.
    """
    if frame["depth"].nunique() < 2:
        raise CannotFill("depth does not vary")
    rows = block_outputs(frame).assign(size=l2)
    rows = ends(require(rows[rows["l"] > 0], "activations or gradients recorded at resid_post"))
    parts = [
        _ratio(rows, "act", "var", "variance", last_first=True),
        _ratio(rows, "grad", "size", "gradient"),
        _ratio(rows, "grad", "token_rms_median", "gradient, median token"),
    ]
    found = pd.concat([p for p in parts if len(p)], ignore_index=True)
    found.attrs = frame.attrs
    return _with_fits(found)


def _ratio(
    rows: pd.DataFrame, kind: str, column: str, quantity: str, last_first: bool = False
) -> pd.DataFrame:
    """Ratio of the outer blocks' values per run and end, averaged over seeds."""
    mine = rows[(rows["kind"] == kind) & rows[column].notna()].sort_values("l")
    by = mine.groupby(["run", "when"], observed=True)
    first, last = by.head(1).copy(), by[column].transform("last").loc[by.head(1).index]
    with np.errstate(divide="ignore", invalid="ignore"):
        first["ratio"] = last / first[column] if last_first else first[column] / last
    first = first.assign(x=first["depth"])
    first.attrs = rows.attrs
    return over_seeds(first, ["when", "x"], "ratio").assign(quantity=quantity)


def _with_fits(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns ``exponent`` and ``factor`` of the law factor * L^exponent, one per line."""
    by = [a for a in axes_of(frame) if a != "depth"] + ["when", "quantity"]
    fits = []
    for _, line in frame.groupby(by, observed=True, dropna=False):
        good = line[np.isfinite(line["value"]) & (line["value"] > 0) & (line["x"] > 1)]
        slope, base = np.nan, np.nan
        if good["x"].nunique() > 1:
            slope, base = np.polyfit(np.log(good["x"].astype(float)), np.log(good["value"]), 1)
        fits.append(pd.DataFrame({"exponent": slope, "factor": np.exp(base)}, index=line.index))
    result = frame.join(pd.concat(fits))
    result.attrs = frame.attrs
    return result


@drawn
def draw(frame: pd.DataFrame, width: float = 6.75) -> Figure:
    """Log-log; at init above the end; thin lines and numbers at the right are the fits."""
    lines = Lines(frame, QUANTITIES, "depth $L$", "quantity", "when", width, without=["depth"])
    depths = sorted(int(d) for d in frame["x"].unique())
    for cell in lines.cells:
        _depth_axis(cell.ax, depths)
        drawn_lines = lines.lines_of(cell.rows)
        labels = []
        for hue, dash, line in drawn_lines:
            slope, factor = line["exponent"].iloc[0], line["factor"].iloc[0]
            if np.isfinite(slope):
                colour = lines.looks(hue, dash)["color"]
                x = np.array([depths[0], depths[-1]], float)
                cell.ax.plot(x, factor * x**slope, color=colour, linewidth=0.6, alpha=0.7)
                labels.append((float(factor * x[-1] ** slope), f"{slope:.2f}", colour))
        if len(labels) <= MAX_LINES:
            _label(cell.ax, labels)
    return lines.close("geometric mean", "Thin lines: fits c L^a; numbers: the exponents a.")


def _depth_axis(ax: Axes, depths: list[int]) -> None:
    ax.set_xscale("log")
    ax.set_xlim(depths[0] / 1.15, depths[-1] * 1.15)
    ticks = depths
    while len(ticks) > 5:
        ticks = [*ticks[:-1:2], ticks[-1]]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xticks(ticks, [str(t) for t in ticks])


def _label(ax: Axes, labels: list[tuple[float, str, str]]) -> None:
    """Exponents at the right edge, moved apart where they would overlap."""
    low, high = np.log10(ax.get_ylim())
    places = [min(max((np.log10(y) - low) / (high - low), 0.0), 1.0) for y, _, _ in labels]
    order = sorted(range(len(labels)), key=lambda i: places[i])
    gap = min(0.1, 1.0 / max(len(labels) - 1, 1))
    spread: list[float] = []
    for i in order:
        spread.append(max(places[i], spread[-1] + gap) if spread else places[i])
    over = max(0.0, spread[-1] - 1.0) if spread else 0.0
    for i, y in zip(order, spread, strict=True):
        _, text, colour = labels[i]
        ax.annotate(
            text, (1.01, y - over), xycoords="axes fraction", fontsize=6, va="center", color=colour
        )  # fmt: skip
