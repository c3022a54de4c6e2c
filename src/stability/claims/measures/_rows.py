"""From one run's rows to arrays over depth."""

from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from stability.claims.yaml_types import Scalar
from stability.config import instantiate
from stability.config.knobs import ConfigError
from stability.config.names import BLOCK_SUBLAYERS, SITE_ORDER, SUBLAYER_ORDER, execution_key
from stability.parts.inits import Weight, start_std
from stability.results.fits import line
from stability.results.stream import block_outputs, l2

Rows: TypeAlias = pd.DataFrame
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Quantity: TypeAlias = Literal["variance", "sigma", "rms", "gradient"]
"""Of the stream x_l: its variance, std and rms, and the norm of dLoss/dx_l."""
Token: TypeAlias = Literal["all", "median"]
"""Of a gradient: its norm over all tokens, or the rms of the median token."""
Kind: TypeAlias = Literal["act", "grad"]


class Unmeasured(Exception):
    """A seed has no number for a measure; the text says why."""


def only(frame: Rows, what: str = "rows") -> Rows:
    """The frame itself where it is that of one run.

    Raises:
        Unmeasured: no row, or several runs in one seed.
    """
    if frame.empty:
        raise Unmeasured(f"no {what}")
    if frame["run"].nunique() > 1:
        raise Unmeasured(f"{frame['run'].nunique()} runs in one seed: name their axis under over")
    return frame


def run_value(run: pd.Series, key: str) -> float:
    """What a run's row says under a key.

    Raises:
        Unmeasured: nothing, as runs of an external model do of many keys.
    """
    if key not in run or pd.isna(run[key]):
        raise Unmeasured(f"no {key}")
    return float(run[key])


def with_value(runs: Rows, axis: str, value: Scalar) -> Rows:
    """The one run of a seed that has this value on an axis."""
    return only(runs[runs[axis].astype(str) == str(value)], f"run with {axis} = {value}")


def by_depth(layers: Rows, runs: Rows) -> dict[int, Rows]:
    """Depth L -> the rows of the one run of this depth, ascending.

    Raises:
        Unmeasured: two runs have one depth.
    """
    found = {
        int(run_value(run, "depth")): layers[layers["run"] == run["run"]]
        for _, run in runs.iterrows()
    }
    if len(found) < len(runs):
        raise Unmeasured("several runs at one depth: name their axis under over")
    return dict(sorted(found.items()))


def profile(layers: Rows, quantity: Quantity, token: Token = "all") -> Array:
    """A quantity of the stream after l blocks, index l: 0 is the embedding, 1 .. L the blocks.

    Args:
        layers: one run, one step.
        quantity: of x_l.
        token: of the gradient.

    Raises:
        Unmeasured: not recorded, or not finite somewhere.
    """
    kind = "grad" if quantity == "gradient" else "act"
    rows = block_outputs(layers[(layers["kind"] == kind)])
    rows = only(rows, f"{kind} at resid_post").sort_values("l")
    if (rows["nonfinite"].fillna(0) > 0).any():
        first = rows.loc[rows["nonfinite"] > 0, "l"].min()
        raise Unmeasured(f"{quantity} not finite, first after {first} blocks")
    if quantity == "gradient":
        values = l2(rows) if token == "all" else rows["token_rms_median"]
    elif quantity == "sigma":
        values = rows["var"].pow(0.5)
    else:
        values = rows[{"variance": "var", "rms": "rms"}[quantity]]
    return values.to_numpy(float)


def positive(values: Array, what: str) -> Array:
    """The values themselves. Raises Unmeasured unless all of them have a logarithm."""
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise Unmeasured(f"{what} is 0, negative or not finite somewhere")
    return values


def slope(x: Array, y: Array) -> float:
    """Least-squares slope. Raises Unmeasured where there is no line."""
    try:
        return line(x, y).slope
    except ValueError as error:
        raise Unmeasured(str(error)) from error


def gain(run: pd.Series, role: str) -> float:
    """The gain d std^2 of a d x d weight of the first block, at the run's init.

    Raises:
        Unmeasured: the run names no init that can be built.
    """
    prefix = "init.build."
    node = {k[len(prefix) :]: v for k, v in run.items() if k.startswith(prefix) and pd.notna(v)}
    if "_target_" not in node:
        raise Unmeasured("no init.build")
    width, depth = int(run_value(run, "model.width")), int(run_value(run, "depth"))
    if (sublayers := run.get("model.sublayers")) not in BLOCK_SUBLAYERS:
        raise Unmeasured("no model.sublayers")
    per_block = len(BLOCK_SUBLAYERS[str(sublayers)])
    weight = Weight.of(role, (width, width), 0, depth, per_block)
    try:
        init = instantiate.build(node, "init")
    except ConfigError as error:
        raise Unmeasured(str(error)) from error
    return float(width * start_std(init, weight, None) ** 2)


def first_nonfinite(layers: Rows, kind: Kind = "act") -> pd.Series:
    """The first row of a kind, in the order of execution, with a non-finite entry.

    Raises:
        Unmeasured: all of it is finite.
    """
    rows = only(layers[layers["kind"] == kind], kind)
    bad = rows[rows["nonfinite"].fillna(0) > 0]
    if bad.empty:
        raise Unmeasured(f"every {kind} is finite")
    sites = bad["site"].str.partition(".")[0]  # resid_post.NAME is one stream of resid_post
    keys = [
        execution_key(kind, (layer, SUBLAYER_ORDER.index(sublayer)), SITE_ORDER.index(site))
        for layer, sublayer, site in zip(bad["layer"], bad["sublayer"], sites, strict=True)
    ]
    return bad.iloc[keys.index(min(keys))]
