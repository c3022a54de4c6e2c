"""Gradient with respect to the residual stream by layer: all tokens, median token, token 0."""

import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing.layout import BLOCKS, Chart, Quantity
from stability.figures.drawing.lines import draw_lines
from stability.figures.drawing.rounding import is_rounding, is_unresolved, with_rounding
from stability.figures.drawing.select import COMMON, CannotDraw, ends, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.figures.drawing.variants import variant
from stability.results.statistics import SUBNORMAL
from stability.results.stream import block_outputs, l2
from stability.results.sweep_rows import SweepRows

TABLE = "layers"
COLUMNS = (
    *(*COMMON, "layer", "sublayer", "site", "kind", "numel", "nonfinite", "subnormal"),
    *("rms", "token_rms_median", "first_share", "absmax"),
    *("model.width", "model.attention", "dtype"),
)
WHERE = {"site": ["resid_post", "scores"], "kind": ["grad", "act"]}
STEPS = "ends"
WHAT = "gradients recorded at resid_post"

SHARE = "share of token 0"
TOKENWISE = {"embed", "mlp"}
"""Sublayers that move no gradient between tokens: without others that share says nothing."""
QUANTITIES = {
    "all tokens": Quantity(r"$\|\delta_l\|$", backward=True),
    "median token": Quantity(r"$\|\delta_{l,t}\|$", backward=True),
    "median token, rms": Quantity(r"rms of $\delta_{l,t}$", backward=True),
    SHARE: Quantity(
        r"$\|\delta_{l,0}\|^2\,/\,\|\delta_l\|^2$", False, (-0.03, 1.03), backward=True
    ),
}
CHART = Chart(QUANTITIES, BLOCKS, across="quantity", down="when", layers=True)
MAX_NAMED = 4
"""Variants that a remark names one by one."""


def data(rows: SweepRows) -> SweepRows:
    """Norms of delta_l = dLoss/dx_l.

    ``all tokens``: L2 norm over batch, tokens and features; ``median token``: the median over
    tokens of the token's L2 norm over features, token_rms_median * sqrt(d); ``share of token 0``:
    the share of the sum of squares at position 0. Causal attention moves gradient there, so the
    first hides what happens to the others. The median token of an external model, of unknown d, is
    given as rms over features.
    """
    rows = rows.with_frame(with_rounding(rows.frame))
    frame = require(rows.frame[rows.frame["kind"] == "grad"], WHAT)
    mixes = not set(frame["sublayer"].astype(str)) <= TOKENWISE
    frame = require(block_outputs(frame), WHAT).rename(columns={"l": "x"})
    width, rms = frame["model.width"].astype(float), frame["token_rms_median"]
    values = [l2(frame), rms * width.pow(0.5), rms.where(width.isna()), frame["first_share"]]
    frame = ends(frame.assign(**dict(zip(QUANTITIES, values, strict=True))))
    parts = []
    for name in QUANTITIES:
        centre = "median" if name == SHARE else "geometric"
        if frame[name].notna().any() and (mixes or name != SHARE):
            found = over_seeds(frame, rows.axes, ["when", "x"], name, centre)
            parts.append(found.assign(quantity=name))
    if not parts:
        raise CannotDraw("no finite gradient at any layer")
    numbers = rows.with_frame(pd.concat(parts, ignore_index=True))
    return numbers.with_remarks(*_rounding_errors(rows), *_subnormal_numbers(rows))


def _rounding_errors(rows: SweepRows) -> list[str]:
    """Remarks on variants whose scores are too large for their format; see `drawing.rounding`."""
    shown = ends(rows.frame)
    lost = is_rounding(shown)
    return [
        *_of_scores(
            rows,
            shown[lost],
            "beyond 1/eps the gradient of a fused kernel is rounding error (see model.attention)",
        ),
        *_of_scores(
            rows,
            shown[is_unresolved(shown) & ~lost],
            "their format does not resolve the scores, and the gradient is right in its order of "
            "magnitude at best",
        ),
    ]


def _of_scores(rows: SweepRows, some: pd.DataFrame, meaning: str) -> list[str]:
    """A remark on the variants of some rows, with their largest score, if there are any."""
    scores = some[some["site"] == "scores"]
    if scores.empty:  # as theory's rows always are
        return []
    scores = scores.sort_values("absmax", ascending=False)
    largest = scores["absmax"].iloc[0]
    return [f"{_variants(rows, scores)}: scores of attention up to {largest:.0e}; {meaning}"]


def _subnormal_numbers(rows: SweepRows) -> list[str]:
    """A remark on variants whose gradient holds subnormal numbers, with the worst place."""
    frame = rows.frame
    if "subnormal" not in frame:  # theory
        return []
    grads = block_outputs(ends(frame[frame["kind"] == "grad"]))
    grads = grads.assign(share=grads["subnormal"] / grads["numel"])
    grads = grads[grads["share"] > SUBNORMAL].sort_values("share", ascending=False)
    if grads.empty:
        return []
    top = grads.iloc[0]
    return [
        f"{_variants(rows, grads)}: up to {top['share']:.0%} of a gradient's entries "
        f"(step {top['step']}, block {top['l']:.0f}) are subnormal, below the smallest normal "
        "number of the format: they have fewer digits, and can slow a CPU down"
    ]


def _variants(rows: SweepRows, some: pd.DataFrame) -> str:
    """The variants of some of the rows, as many by name as there is room for."""
    found = rows.with_frame(some).variants()
    names = [variant(rows, row) or "all runs" for _, row in found.iterrows()]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{'; '.join(names[:MAX_NAMED])}{more}"


@drawn
def draw(rows: SweepRows, width: float = 6.75, theory: SweepRows | None = None) -> Figure:
    """Three panels side by side; at init above the end."""
    return draw_lines(rows, CHART, width, theory).close("geometric mean (share: median)")
