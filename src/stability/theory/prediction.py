"""Variance and gradient at every site at infinite width, as rows of the ``layers`` table.

`predict` follows the tokens of one batch through `recursion` and returns rows with the columns of
the ``layers`` table, so that a figure can draw them through the measured points.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from stability.config.knobs import Config
from stability.parts.activation_kernels import Matrix, correlation
from stability.theory.covariance import Cov
from stability.theory.recursion import (
    MAX_TOKENS,
    MAX_TOKENS_ATTENTION,
    Net,
    SiteCovariance,
    TokenGroup,
    Tokens,
    groups,
)


def predict(config: Config, x_BT: Tokens, y_BT: Tokens, vocab: int) -> pd.DataFrame:
    """Variance and gradient at every site at init.

    The first sequences of a batch are followed: `MAX_TOKENS` tokens at most, or one sequence.

    Args:
        config: of the run.
        x_BT: tokens of step 0.
        y_BT: targets, negative where ignored.
        vocab: rows of the embedding.

    Returns:
        Rows (layer, sublayer, site, kind) with numel, var, rms, first_share, token_rms_median as in
        the ``layers`` table, l2 = rms sqrt(numel), the mean cosine between different tokens of a
        sequence; ``spread``, the relative standard deviation of var over nets of this width, to
        first order in 1/width, NaN where it is not derived (gradients; what attention or an MLP
        adds, unless a norm follows); and ``saturated``: a gradient that is not to be trusted, as it
        has come through attention whose softmax picks single tokens (`Attention.saturates`).

    Raises:
        NoTheory: the config is outside what the recursion covers.
    """
    net = Net(config, vocab)
    joint = net.norm_kernel.joint
    found = groups(x_BT, y_BT, config.model.causal, joint)
    runs = [net.run(batch, seed) for seed, batch in enumerate(found)]
    together = _together(net, runs[0], x_BT, y_BT) if not joint else runs[0]
    rows: list[dict[str, Any]] = []
    for *sites, several in zip(*runs, together, strict=True):
        rows += _rows(sites, found, x_BT.size, _spread(several.x, x_BT.size))
    return pd.DataFrame(rows)


def _together(
    net: Net, alone: list[SiteCovariance], x_BT: Tokens, y_BT: Tokens
) -> list[SiteCovariance]:
    """`Net.run` of all sequences at once, where that gives deviations of all tokens; else `alone`.

    All share the weights, so that their deviations are not independent. With attention, whose cost
    grows with the third power of the tokens, only batches of at most
    `MAX_TOKENS_ATTENTION` are run so.
    """
    known = any(len(site.x.deviations or ()) > 1 and site.x.spread > 0 for site in alone)
    most = MAX_TOKENS_ATTENTION if "attn" in net.names else MAX_TOKENS
    if len(x_BT) == 1 or not known or x_BT.size > most:
        return alone
    return net.run(groups(x_BT, y_BT, net.model.causal, joint=True)[0], seed=0)


def _spread(x: Cov, tokens: int) -> float:
    """`Cov.spread` if x covers the whole batch (or is 0), else NaN."""
    return x.spread if len(x.C) == tokens or x.spread == 0 else math.nan


def _rows(
    sites: Sequence[SiteCovariance], batches: list[TokenGroup], tokens: int, spread: float
) -> Iterator[dict[str, Any]]:
    first = np.concatenate([b.position == 0 for b in batches])
    layer, sublayer, name = sites[0].key
    for kind in ("act", "grad"):
        matrices = [site.x.C if kind == "act" else site.x.G for site in sites]
        square = np.concatenate([np.diagonal(M) for M in matrices])
        mean, numel = square.mean(), tokens * sites[0].width
        yield {
            "layer": layer,
            "sublayer": sublayer,
            "site": name,
            "kind": kind,
            "numel": numel,
            "var": mean,
            "rms": np.sqrt(mean),
            "l2": np.sqrt(mean * numel),
            "first_share": square[first].sum() / square.sum() if mean > 0 else np.nan,
            "token_rms_median": np.median(np.sqrt(square)),
            "spread": spread if kind == "act" else np.nan,
            "saturated": kind == "grad" and sites[0].saturated,
            "cosine": np.mean([_cosine(M, b) for M, b in zip(matrices, batches, strict=True)]),
        }


def _cosine(C: Matrix, batch: TokenGroup) -> float:
    """Mean correlation of different tokens of one sequence."""
    pairs = (batch.mask | batch.mask.T) & ~np.eye(len(C), dtype=bool)
    return float(correlation(C)[2][pairs].mean())
