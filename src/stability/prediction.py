"""The infinite-width recursion as rows: variance and gradient of every site, no free parameter.

`predict` follows the tokens of one batch through `stability.recursion` and returns rows with the
columns of the ``layers`` table, so that a figure can draw them through the measured points.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from stability import kernels
from stability.kernels import Matrix
from stability.recursion import Batch, Config, Net, Site, Tokens, groups


def predict(config: Config, x_BT: Tokens, y_BT: Tokens, vocab: int) -> pd.DataFrame:
    """Variance and gradient at every site for one batch at init.

    Args:
        config: nested and resolved.
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
    joint = net.norm.args[0].joint
    found = groups(x_BT, y_BT, config["model"]["causal"], joint)
    runs = [net.run(batch, seed) for seed, batch in enumerate(found)]
    together = _together(net, runs[0], x_BT, y_BT) if not joint else runs[0]
    rows: list[dict[str, Any]] = []
    for *sites, several in zip(*runs, together, strict=True):
        rows += _rows(sites, found, x_BT.size, _spread(sites, several, x_BT))
    return pd.DataFrame(rows)


def _together(net: Net, alone: list[Site], x_BT: Tokens, y_BT: Tokens) -> list[Site]:
    """A run of several sequences at once, where it says more of `Cov.strays` than one of them."""
    if len(x_BT) == 1 or not any(len(s.x.strays or ()) > 1 and s.x.spread > 0 for s in alone):
        return alone
    few = slice(2 if "attn" in net.names else None)  # attention costs the square of its tokens
    return net.run(groups(x_BT[few], y_BT[few], net.model["causal"], joint=True)[0], seed=0)


def _spread(sites: Sequence[Site], several: Site, x_BT: Tokens) -> float:
    """Relative standard deviation of the mean square over all B sequences.

    All share the weights: its square is r_1 / B + (1 - 1/B) c, where r_1 is that of one sequence
    and c what two have in common. Of n sequences together it is r_n = r_1 / n + (1 - 1/n) c.
    """
    B, T = x_BT.shape
    n, r_n = len(several.x.C) // T, several.x.spread**2
    if n == B or r_n == 0:
        return float(np.sqrt(r_n))
    if n == 1 or len(sites[0].x.C) > T:
        return np.nan
    r_1 = float(np.mean([site.x.spread**2 for site in sites]))
    common = (n * r_n - r_1) / (n - 1)
    return float(np.sqrt(max(r_1 / B + (1 - 1 / B) * common, 0)))


def _rows(
    sites: Sequence[Site], batches: list[Batch], tokens: int, spread: float
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


def _cosine(C: Matrix, batch: Batch) -> float:
    """Mean correlation of different tokens of one sequence."""
    pairs = (batch.mask | batch.mask.T) & ~np.eye(len(C), dtype=bool)
    return float(kernels.correlation(C)[2][pairs].mean())
