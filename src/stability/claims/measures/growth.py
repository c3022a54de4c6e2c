"""How activations grow with depth."""

import math

import numpy as np

from stability.claims.measures._rows import (
    Quantity,
    Rows,
    Token,
    Unmeasured,
    by_depth,
    gain,
    only,
    positive,
    profile,
    run_value,
    slope,
    with_value,
)
from stability.claims.yaml_types import ConfigKey, Scalar
from stability.results.fits import aic


def growth_exponent(
    layers: Rows,
    quantity: Quantity = "variance",
    token: Token = "all",
    start: int = 1,
    less_embedding: bool = False,
    least_growth: float = 1.0,
) -> float:
    """Exponent b of q_l = c l^b over l = start .. L.

    Args:
        layers: one run at one step.
        quantity: q, of the stream.
        token: of a gradient.
        start: the first block output of the fit.
        less_embedding: whether q_l - q_0 is fitted.
        least_growth: q_L / q_0 below which the seed has no number.
    """
    values = profile(layers, quantity, token)
    if values[-1] < least_growth * values[0]:
        raise Unmeasured(f"{quantity} grows {values[-1] / values[0]:.2g} times only")
    fitted = (values - values[0] if less_embedding else values)[start:]
    return slope(np.log(np.arange(start, len(values))), np.log(positive(fitted, quantity)))


def exponential_over_power(
    layers: Rows, quantity: Quantity = "variance", token: Token = "all"
) -> float:
    """AIC of a power law minus AIC of an exponential, both fitted to ln q_l: > 0 for exponential.

    The argument of both is the number of blocks that the quantity has passed, l on the way up and
    L - l + 1 for gradients. The quantity must move at least tenfold.
    """
    values = positive(profile(layers, quantity, token)[1:], quantity)
    if quantity == "gradient":
        values = values[::-1]
    if (moved := values.max() / values.min()) < 10:
        raise Unmeasured(f"{quantity} moves {moved:.2g}-fold only, tenfold is needed")
    x = np.arange(1, len(values) + 1)
    return aic("power", x, values) - aic("exponential", x, values)


def slope_per_sublayer(layers: Rows, quantity: Quantity = "variance") -> float:
    """Least-squares slope of q_l over sublayers, l = 1 .. L."""
    values = profile(layers, quantity)
    each = layers.loc[layers["layer"] == 0, "sublayer"].nunique()
    return slope(each * np.arange(1.0, len(values)), values[1:])


def factor_over_law(
    layers: Rows, runs: Rows, quantity: Quantity = "variance", token: Token = "all"
) -> float:
    """Geometric mean of the factor per sublayer of a linear stack without norms, over 1 + d std^2.

    The factor is that of Var(x_l) on the way up, of |delta_l|^2 on the way down.
    """
    values = positive(profile(layers, quantity, token)[1:], quantity)
    ratio = values[-1] / values[0] if quantity == "variance" else (values[0] / values[-1]) ** 2
    law = 1 + gain(only(runs).iloc[0], "linear")
    return float(ratio ** (1 / (len(values) - 1)) / law)


def last_over_first(layers: Rows, quantity: Quantity = "rms", token: Token = "all") -> float:
    """q_L / q_1."""
    values = positive(profile(layers, quantity, token)[1:], quantity)
    return float(values[-1] / values[0])


def increment(layers: Rows, runs: Rows, over_law: bool = False) -> float:
    """Var(x_L) - Var(x_0), in units of the law L d std^2 if asked.

    The law is what L linear branches add, each behind a norm.
    """
    values = profile(layers, "variance")
    run = only(runs).iloc[0]
    law = run_value(run, "depth") * gain(run, "linear") if over_law else 1.0
    return float((values[-1] - values[0]) / law)


def increment_over_depth(layers: Rows, runs: Rows) -> float:
    """Log-log slope of Var(x_L) - Var(x_0) on L, over the runs of one seed at several depths."""
    found = {L: profile(rows, "variance") for L, rows in by_depth(layers, runs).items()}
    grown = positive(np.array([v[-1] - v[0] for v in found.values()]), "the increment")
    return slope(np.log(list(found)), np.log(grown))


def sigma_over_branches(layers: Rows) -> float:
    """Exponent of sigma(x_l) on the sum of the measured branch variances up to l.

    1/2 says that branches add as independent terms, whatever their own variances are.
    """
    values = profile(layers, "variance")
    rows = layers[(layers["kind"] == "act") & (layers["site"] == "branch_out")]
    rows = only(rows[rows["sublayer"] != "head"], "act at branch_out")
    total = rows.groupby("layer")["var"].sum().sort_index().cumsum().to_numpy()
    grown = positive(values[1:] - values[0], "the increment")
    return slope(np.log(total), np.log(grown) / 2)


def layer_gain(layers: Rows) -> float:
    """rms(branch_out) / rms(branch_in), mean over the sublayers of the blocks."""
    rows = layers[(layers["kind"] == "act") & (layers["sublayer"] != "head")]
    rms = only(rows, "activations").pivot_table("rms", ["layer", "sublayer"], "site", observed=True)
    if not {"branch_in", "branch_out"} <= set(rms):
        raise Unmeasured("branch_in and branch_out are not recorded")
    return float((rms["branch_out"] / rms["branch_in"]).mean())


def last_ratio(layers: Rows, runs: Rows, axis: ConfigKey, of: Scalar, to: Scalar) -> float:
    """Var(x_L) at one value of an axis (``of``) over that at another (``to``), by seed."""
    above, below = (
        profile(layers[layers["run"].isin(with_value(runs, axis, value)["run"])], "variance")[-1]
        for value in (of, to)
    )
    return float(above / below) if below > 0 else math.inf
