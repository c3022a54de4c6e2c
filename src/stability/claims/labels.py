"""What a measure's number is, as an axis calls it: in words and symbols of the field."""

from collections.abc import Callable, Mapping

from stability.claims.measures import Settings, measures

QUANTITIES = {
    "variance": r"$\mathrm{Var}(x_l)$",
    "sigma": r"$\sigma(x_l)$",
    "rms": r"$\mathrm{rms}(x_l)$",
    "gradient": r"$\|\delta_l\|$",
}
PROBES = {
    "outer_product": r"relative error of $\sum_t\delta_t x_t^T$ against the weight gradient",
    "norm_jacobian": "largest difference of a norm's Jacobian from automatic differentiation",
    "token_cosine": "mean cosine between tokens of a sequence",
}
GROUPS = {
    "first": "position 0",
    "quarter": "the rest of the first quarter of positions",
    "rest": "later positions",
}
"""Positions of tokens."""
AXES = {"norm_type": "", "init": "init ", "dtype": "", "train.warmup_steps": "warm-up steps = "}
"""How values of these keys are called."""


def _of(given: Settings, start: str = "variance") -> str:
    """The quantity that a measure follows, and for which token."""
    name = QUANTITIES[str(given.get("quantity", start))]
    return name + (", median token" if given.get("token") == "median" else "")


def _delta(given: Settings, index: str, start: str = "all") -> str:
    return rf"\|\delta_{{{index}{',t' if given.get('token', start) == 'median' else ''}}}\|"


def _value(given: Settings, name: str) -> str:
    """A value of the axis along which runs are compared."""
    axis = str(given.get("axis", "dtype"))
    return f"{AXES.get(axis, f'{axis} = ')}{given[name]}"


def _pair(given: Settings, how: str) -> str:
    return f"{_value(given, 'of')} {how} {_value(given, 'to')}"


def _probe(given: Settings) -> str:
    item = {"act": " (activation)", "grad": " (gradient)"}.get(str(given.get("item", "")), "")
    return PROBES.get(str(given["probe"]), str(given["probe"]).replace("_", " ")) + item


LABELS: Mapping[str, Callable[[Settings], str]] = {
    "blocks_after_score_overflow": lambda s: (
        "first block that is not finite, minus the block where attention's scores should overflow"
    ),
    "branch_jacobian_exponent": lambda s: r"exponent over sublayers $k$ of $\|J_f J_N\|_2$",
    "branch_jacobian_times_sigma_exponent": lambda s: (
        r"exponent over sublayers $k$ of $\|J_f J_N\|_2\,\sigma_k$"
    ),
    "decay_per_block": lambda s: (
        rf"$\ln({_delta(s, '1')}\,/\,{_delta(s, 'L')})\,/\,(L-1)$;"
        " below 0 the gradient vanishes towards the input"
    ),
    "evaluation_gap": lambda s: "validation loss minus training loss at the end (nats per token)",
    "excess_gap": lambda s: (
        "validation minus training loss (nats per token):"
        f" {_value(s, 'of')} minus {s.get('factor', 3.0):g} times {_value(s, 'to')}"
    ),
    "exponential_over_power": lambda s: (
        f"AIC of a power law minus AIC of an exponential, {_of(s)};"
        " above 0 the growth is exponential"
    ),
    "factor_over_law": lambda s: rf"factor per sublayer over $1+d\,\mathrm{{std}}^2$, {_of(s)}",
    "final_loss": lambda s: "validation loss at the end (nats per token)",
    "first_bad_step": lambda s: "first step that is not finite",
    "first_token_over_others": lambda s: (
        rf"$\|\delta_{{{'1' if s.get('block', 'first') == 'first' else 'l'},t}}\|$:"
        " position 0 over the mean of the others"
        + ("" if s.get("block", "first") == "first" else ", median over blocks")
    ),
    "first_gradient_over_depth": lambda s: rf"exponent $b$ in ${_delta(s, '1')}\propto L^b$",
    "gradient_times_sigma_spread": lambda s: (
        "largest relative distance of"
        rf" ${_delta(s, 'l', 'median')}\,\sigma(x_l)$ from its mean over $l$"
    ),
    "growth_exponent": lambda s: (
        f"exponent $b$ in {_of(s)} "
        + ("minus that of the embedding " if s.get("less_embedding") else "")
        + r"$\propto l^b$"
    ),
    "increment": lambda s: (
        r"$\mathrm{Var}(x_L)-\mathrm{Var}(x_0)$"
        + (r" over $L\,d\,\mathrm{std}^2$" if s.get("over_law") else "")
    ),
    "increment_over_depth": lambda s: (
        r"exponent $b$ in $\mathrm{Var}(x_L)-\mathrm{Var}(x_0)\propto L^b$"
    ),
    "largest_error": lambda s: f"largest {_probe(s)}",
    "largest_number": lambda s: "largest finite number of the format",
    "last_over_first": lambda s: f"{_of(s, 'rms')}: last block over first",
    "last_ratio": lambda s: rf"$\mathrm{{Var}}(x_L)$: {_pair(s, 'over')}",
    "layer_gain": lambda s: "rms of a branch's output over rms of its input, mean over sublayers",
    "lesion_rise": lambda s: (
        "rise of the loss when a block is removed, median over blocks, over what was learned"
    ),
    "loss_difference": lambda s: f"validation loss (nats per token): {_pair(s, 'minus')}",
    "lost_share": lambda s: "share of weight updates lost to rounding",
    "lost_share_ratio": lambda s: f"share of weight updates lost to rounding: {_pair(s, 'over')}",
    "mean_over_noise": lambda s: (
        r"|mean| / std of what norms read, over $\sqrt{2/(\pi d)}$;"
        " 1 for noise"
    ),
    "mean_value": _probe,
    "norm_bytes_ratio": lambda s: f"bytes that norms move: {_pair(s, 'over')}",
    "norm_product_per_norm": lambda s: r"geometric mean of $1/\sigma$ over the norms",
    "not_learned": lambda s: "share of seeds that have not learned",
    "not_learned_at": lambda s: f"share of seeds that have not learned, {_value(s, 'of')}",
    "overflow_block": lambda s: (
        "first block $l$ whose"
        f" {'gradient' if s.get('kind') == 'grad' else 'activation'} is not finite"
    ),
    "overflow_over_law": lambda s: "first sublayer that is not finite, over that of the law",
    "overflows_first": lambda s: f"share of seeds in which {s['first']} overflows first",
    "share_of_norm_product": lambda s: (
        rf"$\ln({_delta(s, '1')}\,/\,{_delta(s, 'L')})$"
        r" over $\ln\prod 1/\sigma$ of the norms"
    ),
    "sigma_over_branches": lambda s: r"exponent of $\sigma(x_l)$ on the sum of branch variances",
    "slope_per_sublayer": lambda s: f"slope of {_of(s)} per sublayer",
    "spectral_error": lambda s: r"relative distance of a norm's $\|J\|_2$ from $1/\sigma$, largest",
    "step_seconds_ratio": lambda s: f"seconds per step: {_pair(s, 'over')}",
    "top_over_bottom": lambda s: r"$\|\partial\mathcal{L}/\partial W\|$: last block over first",
    "top_over_bottom_of_group": lambda s: (
        r"$\|\partial\mathcal{L}/\partial W\|$: last block over"
        f" first, part from {GROUPS[str(s.get('group', 'rest'))]}"
    ),
    "variance_at_overflow": lambda s: r"$\mathrm{Var}(x)$ before the first sublayer that overflows",
}


def label(measure: str, given: Settings) -> str:
    """What an axis calls the number of a measure with these settings; else its first line."""
    if measure in LABELS:
        return LABELS[measure](given)
    return measures()[measure].meaning.rstrip(".").replace("`", "")
