"""Dynamic range by layer against the limits of the number format, and of Adam's eps."""

import math

import pandas as pd
from matplotlib.figure import Figure

from stability.config.names import FINAL_NORM
from stability.figures.drawing import rounding
from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.rounding import with_rounding
from stability.figures.drawing.scales import short
from stability.figures.drawing.select import COMMON, CannotDraw, ends, over_seeds
from stability.figures.drawing.style import drawn
from stability.figures.drawing.weight_rows import matrices
from stability.results.stream import block_outputs, run_columns
from stability.results.sweep_rows import SweepRows

TABLE = "layers"
COLUMNS = (
    *(*COMMON, "layer", "sublayer", "numel", "rms", "nonfinite", *rounding.COLUMNS),
    *("finfo.max", "finfo.tiny", "optimizer.eps"),
)
WHERE = {"kind": ["act", "grad", "weight_grad"]}
STEPS = "ends"

LARGEST, GRADIENT, WEIGHT = "largest activation", "gradient", "smallest weight gradient"
MEANING = (
    r"Left: the largest $|x|$ in the block's activations, without the attention matrix. "
    r"Middle: rms over all entries of $\partial\mathcal{L}/\partial{x}_l$. "
    "Right: the smallest rms among the block's weight gradients."
)
LIMITS = ["format", "max", "tiny", "eps"]
WIDE_SITES = ("scores", "attn_rows")
"""Computed in at least fp32, whatever the format: its limits do not apply to them."""


def data(rows: SweepRows) -> SweepRows:
    """Per block: largest |activation| over its sites, rms of dL/dx_l, smallest rms of a dL/dW.

    ``max`` and ``tiny`` are the largest and the smallest normal number of the format, ``eps`` is
    the optimizer's (null where it has none): a gradient whose rms lies below it moves no weight.
    """
    frame = with_rounding(rows.frame)
    known = frame.assign(
        x=frame["layer"].astype(int) + 1,
        format=frame["dtype"].fillna("the format").astype(str).str.removeprefix("amp_"),
        max=frame["finfo.max"],
        tiny=frame["finfo.tiny"],
        eps=frame["optimizer.eps"],
    )
    after = known["sublayer"].isin(["head", FINAL_NORM])
    inside = known[~after & (known["x"] > 0)]
    act, grad = (inside[inside["kind"] == kind] for kind in ("act", "grad"))
    act = act[~act["site"].isin(WIDE_SITES)]
    weights = matrices(known[known["kind"] == "weight_grad"])
    parts = [
        (LARGEST, act[act["absmax"].notna()], "absmax", "max"),
        (GRADIENT, block_outputs(grad), "rms", "max"),
        (WEIGHT, weights, "rms", "min"),
    ]
    found = []
    for name, part, column, choose in parts:
        if len(part):
            extreme = ends(_extreme(part, column, choose))
            over = over_seeds(extreme, rows.axes, ["when", *LIMITS, "x"], column)
            found.append(over.assign(quantity=name))
    if not found:
        raise CannotDraw("no activations or gradients recorded")
    return rows.with_frame(pd.concat(found, ignore_index=True))


def _extreme(rows: pd.DataFrame, column: str, choose: str) -> pd.DataFrame:
    """One row per run, step and block, with the most extreme value of its sites."""
    bad = rows["nonfinite"].fillna(0) if "nonfinite" in rows else 0
    place = [*run_columns(rows), "step", "x"]
    by = rows.assign(nonfinite=bad).groupby(place, observed=True)
    values = by.agg(**{column: (column, choose), "nonfinite": ("nonfinite", "sum")})
    first = rows.drop_duplicates(place).drop(columns=[column, "nonfinite"])
    return first.merge(values.reset_index(), on=place)


def _largest(rows: pd.DataFrame) -> list[tuple[float, str]]:
    return [(v, f"largest {f}") for f, v in _distinct(rows, "max")]


def _smallest(rows: pd.DataFrame) -> list[tuple[float, str]]:
    return [(v, f"smallest normal {f}") for f, v in _distinct(rows, "tiny")]


def _eps(rows: pd.DataFrame) -> list[tuple[float, str]]:
    return _smallest(rows) + [(v, "Adam's eps") for v in rows["eps"].dropna().unique()]


def _distinct(rows: pd.DataFrame, name: str) -> list[tuple[str, float]]:
    pairs = rows[["format", name]].dropna().drop_duplicates()
    return [(str(f), float(v)) for f, v in pairs.itertuples(index=False)]


QUANTITIES = {
    LARGEST: Quantity(r"$\max\,|x|$ in block $l$", guides=_largest),
    GRADIENT: Quantity(r"rms of $\delta_l$", guides=_smallest, backward=True),
    WEIGHT: Quantity(r"min rms of $\partial\mathcal{L}/\partial W$", guides=_eps, backward=True),
}


CHART = Chart(QUANTITIES, BLOCKS, across="quantity", down="when", layers=True)


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """Largest activation, gradient and smallest weight gradient; at init above the end."""
    frame = rows.frame
    limits = [f"largest {f} number {short(v)}" for f, v in _distinct(frame, "max")]
    limits += [f"smallest normal {f} number {short(v)}" for f, v in _distinct(frame, "tiny")]
    limits += [f"Adam's eps {short(v)}" for v in frame["eps"].unique() if 0 < v < math.inf]
    note = f"Limits, dotted where near: {'; '.join(limits)}."
    lines = draw_lines(rows, CHART, width)
    return lines.close("geometric mean", MEANING, *([note] if limits else []))
