"""Gradient with respect to the residual stream by layer: all tokens, median token, token 0."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing import panels
from stability.figures.drawing.lines import BLOCKS, Lines, Quantity
from stability.figures.drawing.select import COMMON, ends, over_seeds, require
from stability.figures.drawing.style import axes_of, drawn
from stability.results.stream import block_outputs, l2

TABLE = "layers"
COLUMNS = (
    *(*COMMON, "layer", "sublayer", "site", "kind", "numel", "nonfinite"),
    *("rms", "token_rms_median", "first_share", "absmax"),
    *("model.width", "model.attention", "dtype"),
)
WHERE = {"site": ["resid_post", "scores"], "kind": ["grad", "act"]}
STEPS = "ends"
WHAT = "gradients recorded at resid_post"

QUANTITIES = {
    "all tokens": Quantity(r"$\|\delta_l\|$", backward=True),
    "median token": Quantity(r"$\|\delta_{l,t}\|$", backward=True),
    "median token, rms": Quantity(r"rms of $\delta_{l,t}$", backward=True),
    "share of token 0": Quantity(
        r"$\|\delta_{l,0}\|^2\,/\,\|\delta_l\|^2$", False, (-0.03, 1.03), backward=True
    ),
}


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Norms of delta_l = dLoss/dx_l.

    ``all tokens``: L2 norm over batch, tokens and features; ``median token``: the median over
    tokens of the token's L2 norm over features, token_rms_median * sqrt(d); ``share of token 0``:
    the share of the sum of squares at position 0. The median token of somebody else's model, of
    unknown d, is given as rms over features. Causal attention moves gradient there, so the
    first hides what happens to the others.
    """
    frame = _with_doubts(frame)
    rows = require(frame[frame["kind"] == "grad"], WHAT)
    rows = require(block_outputs(rows), WHAT).rename(columns={"l": "x"})
    width, rms = rows["model.width"].astype(float), rows["token_rms_median"]
    values = [l2(rows), rms * width.pow(0.5), rms.where(width.isna()), rows["first_share"]]
    rows = ends(rows.assign(**dict(zip(QUANTITIES, values, strict=True))))
    parts = []
    for name in QUANTITIES:
        centre = "median" if name == "share of token 0" else "geometric"
        if rows[name].notna().any():  # measured at all
            found = over_seeds(rows, ["when", "x"], name, centre)
            parts.append(found.assign(quantity=name))
    require(parts[0] if parts else rows.iloc[:0], "finite gradient at any layer")
    return pd.concat(parts, ignore_index=True)


def _with_doubts(frame: pd.DataFrame) -> pd.DataFrame:
    """Remark on variants whose gradient is the rounding error of a fused kernel of attention.

    On the way back it computes exp(score - log sum) again, in fp32 or wider: of a score beyond
    1 / eps nothing is left of that difference.
    """
    if "absmax" not in frame:  # theory
        return frame
    scores = frame[(frame["site"] == "scores") & (frame["model.attention"] != "plain")]
    if scores.empty:
        return frame
    shown = ends(scores)
    eps = np.where(shown["dtype"] == "fp64", 2.0**-53, 2.0**-24)
    largest = shown[shown["absmax"] * eps > 1].sort_values("absmax", ascending=False)
    if largest.empty:
        return frame
    axes = axes_of(frame)
    variants = largest.drop_duplicates(axes) if axes else largest.head(1)
    names = [panels.variant(frame, variant) or "all runs" for _, variant in variants.iterrows()]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    remark = (
        f"{'; '.join(names[:4])}{more}: scores of attention up to {largest['absmax'].iloc[0]:.0e}; "
        "beyond 1/eps the gradient of a fused kernel is rounding error (see model.attention)"
    )
    frame = frame.copy(deep=False)
    frame.attrs = frame.attrs | {"remarks": [*frame.attrs.get("remarks", []), remark]}
    return frame


@drawn
def draw(frame: pd.DataFrame, width: float = 6.75, theory: pd.DataFrame | None = None) -> Figure:
    """Three panels side by side; at init above the end."""
    lines = Lines(frame, QUANTITIES, BLOCKS, "quantity", "when", width, layers=True, theory=theory)
    return lines.close("geometric mean (share: median)")
