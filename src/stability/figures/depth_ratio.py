"""Ratios of last to first block against depth, with fitted exponents."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stability.figures.lines import Lines, Quantity
from stability.figures.roles import MAX_LINES
from stability.figures.scales import whole_x
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
    "gradient, median token": Quantity(r"$\|\delta_{1,t}\|\,/\,\|\delta_{L,t}\|$"),
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
    mine = rows[rows["kind"] == kind].sort_values("l")
    if not mine[column].notna().any():
        return mine.iloc[:0]
    by = mine.groupby(["run", "when"], observed=True)
    outer = by.head(1).assign(x=lambda f: f["depth"])
    last = by[column].transform(lambda values: values.iloc[-1]).loc[outer.index]
    first = outer[column]
    with np.errstate(divide="ignore", invalid="ignore"):
        outer["ratio"] = last / first if last_first else first / last
    outer.attrs = rows.attrs
    return over_seeds(outer, ["when", "x"], "ratio").assign(quantity=quantity)


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
        whole_x(cell.ax, depths)
        room = min(0.45, 0.36 / (width / lines.columns - 0.5))  # for the exponents
        cell.ax.set_xlim(right=depths[-1] * (depths[-1] / depths[0]) ** (room / (1 - room)))
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
            _label(cell.ax, depths[-1], labels)
    return lines.close("geometric mean", "Thin lines: fits $c\\,L^a$; numbers: the exponents $a$.")


def _label(ax: Axes, depth: int, labels: list[tuple[float, str, str]]) -> None:
    """Exponents beside the ends of their lines, moved apart where they would overlap."""
    low, high = np.log10(ax.get_ylim())
    places = [float(np.clip((np.log10(y) - low) / (high - low), 0.03, 0.97)) for y, _, _ in labels]
    gap = min(0.09, 0.94 / max(len(labels) - 1, 1))
    order = sorted(range(len(labels)), key=lambda i: places[i])
    spread: list[float] = []
    for i in order:
        spread.append(max(places[i], spread[-1] + gap) if spread else places[i])
    over = max(0.0, spread[-1] - 0.97) if spread else 0.0
    for i, y in zip(order, spread, strict=True):
        _, text, colour = labels[i]
        ax.annotate(
            text, (depth, y - over), xycoords=ax.get_xaxis_transform(), xytext=(4, 0),
            textcoords="offset points", fontsize=6, va="center", color=colour,
        )  # fmt: skip
