"""How gradients change on the way down."""

from typing import Literal

import numpy as np
import pandas as pd

from stability.claims.measures._rows import (
    Array,
    Rows,
    Token,
    Unmeasured,
    by_depth,
    only,
    positive,
    profile,
    slope,
)
from stability.config.names import SUBLAYER_ORDER
from stability.results.stream import ends_block, l2
from stability.results.tokens import first_over_others, positions


def decay_per_block(layers: Rows, token: Token = "all") -> float:
    """ln(|delta_1| / |delta_L|) / (L - 1): below 0 where gradients vanish towards the input."""
    values = positive(profile(layers, "gradient", token)[1:], "the gradient")
    return float(np.log(values[0] / values[-1]) / (len(values) - 1))


def first_gradient_over_depth(layers: Rows, runs: Rows, token: Token = "all") -> float:
    """Log-log slope of |delta_1| on L, over the runs of one seed at several depths."""
    found = {L: profile(rows, "gradient", token)[1] for L, rows in by_depth(layers, runs).items()}
    values = positive(np.array(list(found.values())), "the gradient")
    return slope(np.log(list(found)), np.log(values))


def gradient_times_sigma_spread(layers: Rows, token: Token = "median") -> float:
    """Largest relative distance of |delta_l| sigma(x_l) from its mean over l = 1 .. L."""
    product = profile(layers, "gradient", token)[1:] * profile(layers, "sigma")[1:]
    return float(np.abs(positive(product, "the product") / product.mean() - 1).max())


def share_of_norm_product(layers: Rows, probes: Rows, token: Token = "all") -> float:
    """ln(|delta_1| / |delta_L|) / ln(product of 1/sigma) over the norms between x_1 and x_L.

    It is 1 where the norms' factors alone decide how the gradient changes, 0 where it does not.
    1/sigma is the mean over tokens, from the probe ``norm_sigma``.
    """
    values = positive(profile(layers, "gradient", token)[1:], "the gradient")
    product = np.log(_norm_factors(probes)).sum()
    if abs(product) < np.log(10):
        raise Unmeasured(f"the product of 1/sigma is {np.exp(product):.2g}: too near 1 to tell")
    return float(np.log(values[0] / values[-1]) / product)


def norm_product_per_norm(probes: Rows) -> float:
    """Geometric mean of 1/sigma over the norms between x_1 and x_L."""
    return float(np.exp(np.log(_norm_factors(probes)).mean()))


def top_over_bottom(layers: Rows, weight: str = "mlp_out") -> float:
    """Norm of a weight's gradient in the last block over that in the first."""
    rows = layers[(layers["kind"] == "weight_grad") & (layers["site"] == weight)]
    rows = only(rows, f"weight_grad of {weight}").sort_values("layer")
    sizes = positive(l2(rows).to_numpy(float), "the weight's gradient")
    return float(sizes[-1] / sizes[0])


def top_over_bottom_of_group(
    probes: Rows, weight: str = "mlp_out", group: Literal["first", "quarter", "rest"] = "rest"
) -> float:
    """As `top_over_bottom`, of the part of the gradient that comes from a group of positions.

    Groups of the probe ``token_grad``: ``first`` (position 0), ``quarter``, ``rest``.
    """
    chosen = (probes["probe"] == "token_grad") & (probes["item"] == f"{weight}.{group}")
    rows = only(probes[chosen], f"probe token_grad of {weight}.{group}").sort_values("layer")
    sizes = positive(rows["value"].to_numpy(float), "the weight's gradient")
    return float(sizes[-1] / sizes[0])


def largest_error(probes: Rows, probe: str, item: str = "") -> float:
    """Largest value of a probe, over all items or one."""
    return float(_values(probes, probe, item)["value"].max())


def mean_value(probes: Rows, probe: str, item: str = "") -> float:
    """Mean value of a probe over places, over all items or one."""
    return float(_values(probes, probe, item)["value"].mean())


def spectral_error(probes: Rows) -> float:
    """Largest relative distance of a norm's spectral norm from 1/sigma, by power iteration."""
    found = [_values(probes, "norm_jacobian", i) for i in ("spectral", "inverse_sigma")]
    spectral, inverse = (f.set_index(["layer", "sublayer"])["value"] for f in found)
    return float((spectral / inverse - 1).abs().max())


def first_token_over_others(probes: Rows, block: Literal["first", "median"] = "first") -> float:
    """Rms of the gradient at position 0 over the mean of the other positions.

    At the output of the first block, or the median over blocks. Source: arXiv:2603.17771, which
    reports it for trained models. From the probe ``token_grad``.
    """
    streams = positions(only(probes[probes["probe"] == "token_grad"], "probe token_grad"))
    outputs = streams[(streams["layer"] >= 0) & ends_block(streams)]
    ratios = first_over_others(outputs, ["layer"]).sort_values("layer")["ratio"].to_numpy(float)
    found = ratios[0] if block == "first" else np.median(ratios)
    if not np.isfinite(found):
        raise Unmeasured("the ratio is not finite")
    return float(found)


def branch_jacobian_exponent(probes: Rows) -> float:
    """Exponent over sublayers k of |J_f J_N|.

    Spectral norms from the probe ``jacobian``. The first block is left out, since it reads the
    embedding and not the output of a block. Sublayers of different kinds have different gains, so
    each kind is fitted on its own and the exponents are averaged.
    """
    return _exponent_over_sublayers(_branch_norms(probes))


def branch_jacobian_times_sigma_exponent(layers: Rows, probes: Rows) -> float:
    """Exponent over sublayers k of |J_f J_N| times sigma of the stream that the norm reads.

    Fitted as `branch_jacobian_exponent` is.
    """
    streams = layers[(layers["kind"] == "act") & (layers["site"] == "resid_pre")]
    sigma = only(streams, "act at resid_pre").set_index(["layer", "sublayer"])["var"].pow(0.5)
    return _exponent_over_sublayers((_branch_norms(probes) * sigma).dropna())


def _branch_norms(probes: Rows) -> pd.Series:
    """|J_f J_N| by layer and sublayer."""
    return _values(probes, "jacobian", "branch").set_index(["layer", "sublayer"])["value"]


def _exponent_over_sublayers(values: pd.Series) -> float:
    """Mean over kinds of sublayers of the exponent over k, without the first block."""
    kinds = [name for name in SUBLAYER_ORDER if name in set(values.index.get_level_values(1))]
    slopes = []
    for first, kind in enumerate(kinds, start=1):
        mine = values[values.index.get_level_values("sublayer") == kind]
        mine = mine.droplevel("sublayer").sort_index().loc[1:]
        k = len(kinds) * mine.index.to_numpy(float) + first
        slopes.append(slope(np.log(k), np.log(positive(mine.to_numpy(float), "the Jacobian"))))
    return float(np.mean(slopes))


def _norm_factors(probes: Rows) -> Array:
    """1/sigma of the norms between x_1 and x_L, from the probe ``norm_sigma``."""
    rows = only(probes[probes["probe"] == "norm_sigma"], "probe norm_sigma")
    passed = rows[(rows["layer"] >= 1) & (rows["sublayer"] != "head")]
    return positive(passed["value"].to_numpy(float), "1/sigma")


def _values(probes: Rows, probe: str, item: str) -> Rows:
    chosen = probes[probes["probe"] == probe]
    if item:
        chosen = chosen[chosen["item"] == item]
    return only(chosen, f"probe {probe} {item}".rstrip())
