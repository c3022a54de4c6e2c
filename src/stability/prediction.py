"""The infinite-width recursion as rows: variance and gradient of every site, no free parameter.

`predict` follows the tokens of one batch through `stability.recursion` and returns rows with the
columns of the ``layers`` table, so that a figure can draw them through the measured points.
"""

from collections.abc import Iterator
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
        sequence, and ``saturated``: a gradient that is not to be trusted, as it has come through
        attention whose softmax picks single tokens (`Attention.saturates`).

    Raises:
        NoTheory: the config is outside what the recursion covers.
    """
    net = Net(config, vocab)
    joint = net.norm.args[0].joint
    found = groups(x_BT, y_BT, config["model"]["causal"], joint)
    runs = [net.run(batch, seed) for seed, batch in enumerate(found)]
    rows: list[dict[str, Any]] = []
    for sites in zip(*runs, strict=True):
        rows += _rows(sites, found, x_BT.size)
    return pd.DataFrame(rows)


def _rows(sites: tuple[Site, ...], batches: list[Batch], tokens: int) -> Iterator[dict[str, Any]]:
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
            "saturated": kind == "grad" and sites[0].saturated,
            "cosine": np.mean([_cosine(M, b) for M, b in zip(matrices, batches, strict=True)]),
        }


def _cosine(C: Matrix, batch: Batch) -> float:
    """Mean correlation of different tokens of one sequence."""
    pairs = (batch.mask | batch.mask.T) & ~np.eye(len(C), dtype=bool)
    return float(kernels.correlation(C)[2][pairs].mean())
