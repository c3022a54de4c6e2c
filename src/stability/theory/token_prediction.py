"""The gradient by token at infinite width: what the probe ``token_grad`` measures at init.

The gradient of a token is the diagonal of G. A weight's gradient is sum_t delta_t x_t^T, with x
what the weight reads, of covariance C, and delta the gradient of what it returns, of covariance G.
At infinite width they are independent, so that over a group of tokens

    E |sum_t delta_t x_t^T|_F^2 = fan_in fan_out sum_st C_st G_st.

Tokens of different sequences contribute to that sum together: equal symbols and positions have
parallel x, equal targets parallel delta. So sequences run together, up to
`MAX_TOKENS_ATTENTION` tokens; the means over single sequences and over pairs of them are extended
to the whole batch.

Limits. Most of the gradient of queries and keys cancels, and finite width weighs more in the rest:
at width 64 their gradient can be several times the predicted one. Where a tied head predicts the
same symbol that it reads (width 512, DeepNorm: with probability 0.8), delta is parallel to x
instead of independent of it, and the sums over tokens are not predicted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from stability.config.knobs import Config
from stability.config.token_positions import groups as token_groups
from stability.config.token_positions import positions
from stability.parts.activation_kernels import Matrix
from stability.theory.covariance import Cov
from stability.theory.recursion import (
    MAX_TOKENS_ATTENTION,
    Net,
    SiteCovariance,
    TokenGroup,
    Tokens,
    groups,
)
from stability.theory.sublayers import Attention, hidden


class WeightFlow(NamedTuple):
    """What a weight reads and the gradient of what it returns: covariance, number of features."""

    C: Matrix
    fan_in: int
    G: Matrix
    fan_out: int


def predict(config: Config, x_BT: Tokens, y_BT: Tokens, vocab: int) -> pd.DataFrame:
    """Rows of the probe ``token_grad`` at init, as in the ``probes`` table.

    Args and errors as `stability.theory.prediction.predict`.

    Returns:
        Rows (layer, sublayer, probe, item, value), value being the root of the expected square
        where the probe gives a norm, and ``saturated`` as there.
    """
    parts = config.train.accumulate
    x_BT, y_BT = np.array_split(x_BT, parts)[0], np.array_split(y_BT, parts)[0]
    B, T = x_BT.shape
    size = min(B, max(1, MAX_TOKENS_ATTENTION // T))
    (batch,) = groups(x_BT[:size], y_BT[:size], config.model.causal, joint=True)
    batch = replace(batch, counted=max(int((y_BT >= 0).sum()), 1))
    net = Net(config, vocab)
    sites = {site.key: site for site in net.run(batch, config.seed)}
    rows = [
        (layer, sublayer, str(t), np.diagonal(site.x.G)[t::T].mean(), site.saturated)
        for (layer, sublayer, name), site in sites.items()
        if name == "resid_post"
        for t in positions(T)
    ]
    if size > 1 or B == 1:  # else nothing is known of pairs
        rows += [
            (layer, sublayer, f"{weight}.{group}", np.sqrt(_square(flow, part, B, T)), saturated)
            for layer, sublayer, weight, flow, saturated in _weights(net, sites, batch)
            for group, part in token_groups(T).items()
        ]
    frame = pd.DataFrame(rows, columns=["layer", "sublayer", "item", "value", "saturated"])
    return frame.assign(probe="token_grad")


def _weights(
    net: Net, sites: Mapping[Any, SiteCovariance], batch: TokenGroup
) -> Iterator[tuple[int, str, str, WeightFlow, bool]]:
    """Layer, sublayer, name and flow of every weight of the blocks; whether softmax saturates."""
    for (layer, sublayer, name), site in sites.items():
        if name == "branch_out" and sublayer != "head":
            x = sites[layer, sublayer, "branch_in"].x
            for weight, flow in _flows(net, layer, sublayer, batch, x, site.x.G).items():
                yield layer, sublayer, weight, flow, site.saturated


def _flows(
    net: Net, layer: int, sublayer: str, batch: TokenGroup, x: Cov, G: Matrix
) -> dict[str, WeightFlow]:
    """What each weight of a sublayer reads and gets back, for input x and output gradient G."""
    d, gains = net.width, net.gains(sublayer, layer, net.placement(layer, sublayer))
    if sublayer == "linear":
        return {"linear": WeightFlow(x.C, d, G, d)}
    if sublayer == "attn":
        attention = net.branch(sublayer, gains, batch)
        assert isinstance(attention, Attention)
        read, back = attention.inside(x.C, x.tape.rng)
        into = {name: WeightFlow(x.C, d, to, d) for name, to in back(G).items()}
        return into | {"attn_out": WeightFlow(read, d, G, d)}
    read, slopes = hidden(net.activation, gains, x.C)
    m = net.hidden
    backward_gain = gains["mlp_out"] * d / m  # fan_out * std^2 of W2
    into = {
        name: WeightFlow(x.C, d, backward_gain * slope * G, m) for name, slope in slopes.items()
    }
    return into | {"mlp_out": WeightFlow(read, m, G, d)}


def _square(flow: WeightFlow, part: slice, B: int, T: int) -> float:
    """E |sum_t delta_t x_t^T|^2 over some positions of B sequences of T tokens.

    Known are the first sequences of the batch. With `alone` the mean over them, and `pairs` that
    over pairs of different ones, the square is fan_in fan_out (B alone + B (B - 1) pairs).
    """
    size = len(flow.C) // T
    product = (flow.C * flow.G).reshape(size, T, size, T)[:, part, :, part].sum((1, 3))
    alone = np.trace(product) / size
    pairs = (product.sum() - np.trace(product)) / max(size * (size - 1), 1)
    return max(flow.fan_in * flow.fan_out * float(B * alone + B * (B - 1) * pairs), 0)
