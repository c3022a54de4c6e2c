"""Tensor -> statistics, on the tensor's device and without waiting for it.

A tensor becomes a vector of `FIELDS` in fp64. Everything that can overflow or underflow is kept
relative to the largest finite magnitude (``scale``), so that any finite tensor of any format has
finite statistics, and dividing out a loss scale is one division. Vectors of parts merge exactly into
that of the whole (`merge`), and `columns` turns them into the columns of the layers table.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

FIELDS = (
    "numel",
    "nonfinite",
    "zeros",
    "subnormal",
    "near_max",
    "scale",
    "mean",
    "m2",
    "ss",
    "abs",
    "first",
)
"""Counts; then ``scale`` s = max |x| over the finite entries; then, of x / s over the finite entries:
mean, sum of squared deviations, sum of squares, sum of magnitudes, sum of squares at position 0."""

NUMEL, NONFINITE, ZEROS, SUBNORMAL, NEAR_MAX, SCALE, MEAN, M2, SS, ABS, FIRST = range(len(FIELDS))
_COUNTS = slice(NUMEL, NEAR_MAX + 1)
_SUMS = (ABS,)
_SQUARES = (SS, FIRST)

CHUNK = 1 << 24
"""Largest number of entries measured at once: bounds the fp64 copies to a few hundred MB."""


def widest(x: Tensor) -> Tensor:
    """The tensor in fp64, or in fp32 where the device has none."""
    # MPS has no fp64; sums of x / max|x| are safe in fp32 as well, only less exact.
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)


def moments(x_NE: Tensor) -> Tensor:
    """Statistics of each row: (N, E) -> (N, fields). Field ``first`` is NaN."""
    limits = torch.finfo(x_NE.dtype)
    x = widest(x_NE)
    finite = torch.isfinite(x)
    x = torch.where(finite, x, 0.0)
    mag = x.abs()
    scale = mag.amax(1)
    nonfinite = (~finite).sum(1)
    zero = mag == 0
    n = (x.shape[1] - nonfinite).clamp(min=1)
    x = x / torch.where(scale > 0, scale, 1.0)[:, None]
    mean = x.sum(1) / n
    deviation = torch.where(finite, x - mean[:, None], 0.0)
    fields = [
        torch.full_like(scale, x.shape[1]),
        nonfinite,
        zero.sum(1) - nonfinite,
        ((mag < limits.tiny) & ~zero).sum(1),
        (mag >= limits.max / 2).sum(1),
        scale,
        mean,
        deviation.square().sum(1),
        x.square().sum(1),
        x.abs().sum(1),
        torch.full_like(scale, math.nan),
    ]
    return torch.stack([f.to(scale.dtype) for f in fields], dim=1)


def merge(parts_KNF: Tensor) -> Tensor:
    """Statistics of the concatenation of K parts: (K, N, fields) -> (N, fields).

    The pairwise rule of Chan, Golub and LeVeque (1979) for K parts at once: the sum of squared
    deviations is that within the parts plus n_k (mean_k - mean)^2 between them.
    """
    whole = parts_KNF.sum(0)
    scale = parts_KNF[..., SCALE].amax(0)
    ratio = parts_KNF[..., SCALE] / torch.where(scale > 0, scale, 1.0)
    n = parts_KNF[..., NUMEL] - parts_KNF[..., NONFINITE]
    means = parts_KNF[..., MEAN] * ratio
    mean = (n * means).sum(0) / n.sum(0).clamp(min=1)
    whole[..., SCALE] = scale
    whole[..., MEAN] = mean
    within = parts_KNF[..., M2] * ratio**2
    whole[..., M2] = (within + n * (means - mean).square()).sum(0)
    for field in _SUMS:
        whole[..., field] = (parts_KNF[..., field] * ratio).sum(0)
    for field in _SQUARES:
        whole[..., field] = (parts_KNF[..., field] * ratio**2).sum(0)
    return whole


def measure(x: Tensor) -> Tensor:
    """Statistics of one tensor of any shape: (fields,)."""
    flat = x.detach().reshape(1, -1)
    if flat.numel() <= CHUNK:
        return moments(flat)[0]
    return merge(torch.stack([moments(part) for part in flat.split(CHUNK, dim=1)]))[0]


def measure_tokens(x: Tensor, token_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Statistics of an activation x_BTD, and the rms of each of its tokens.

    Returns:
        (fields,) with ``first`` = sum of (x / s)^2 at position 0 of the token axis, and the
        root mean square over the finite features of each token, (tokens,), NaN where none is finite.
    """
    x = x.detach()
    vector = measure(x)
    scale = torch.where(vector[SCALE] > 0, vector[SCALE], 1.0)
    finite = torch.isfinite(x)
    ss = torch.where(finite, widest(x) / scale, 0.0).square().sum(-1)
    vector[FIRST] = ss.select(token_dim, 0).sum()
    token_rms = (ss / finite.sum(-1)).sqrt() * vector[SCALE]
    return vector, token_rms.flatten()


def measure_many(tensors: Sequence[Tensor]) -> Tensor:
    """Statistics of many tensors, (len, fields), tensors of one shape and dtype measured together."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, t in enumerate(tensors):
        groups.setdefault((t.numel(), t.dtype), []).append(i)
    rows: list[Tensor | None] = [None] * len(tensors)
    for (numel, _), members in groups.items():
        step = max(1, CHUNK // max(numel, 1))
        for start in range(0, len(members), step):
            chosen = members[start : start + step]
            if numel > CHUNK:
                measured = torch.stack([measure(tensors[i]) for i in chosen])
            else:
                stacked = torch.stack([tensors[i].detach().reshape(-1) for i in chosen])
                measured = moments(stacked)
            for i, row in zip(chosen, measured, strict=True):
                rows[i] = row
    return torch.stack([r for r in rows if r is not None])


def columns(
    vectors_NF: np.ndarray[Any, Any], divisor: np.ndarray[Any, Any] | float = 1.0
) -> dict[str, np.ndarray[Any, Any]]:
    """The table's columns from N vectors, values divided by ``divisor`` (the loss scale).

    Counts describe the tensor as its dtype held it, so the divisor does not touch them. Where all
    entries are non-finite every value is NaN.
    """
    v = np.asarray(vectors_NF, dtype=np.float64)
    n = v[:, NUMEL] - v[:, NONFINITE]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = np.where(n > 0, v[:, SCALE], np.nan) / divisor
        return {
            "numel": v[:, NUMEL].astype(np.int64),
            "mean": scale * v[:, MEAN],
            "var": scale * (scale * (v[:, M2] / n)),
            "rms": scale * np.sqrt(v[:, SS] / n),
            "absmax": scale,
            "absmean": scale * (v[:, ABS] / n),
            "first_share": v[:, FIRST] / v[:, SS],
            "nonfinite": v[:, NONFINITE].astype(np.int64),
            "zeros": v[:, ZEROS].astype(np.int64),
            "subnormal": v[:, SUBNORMAL].astype(np.int64),
            "near_max": v[:, NEAR_MAX].astype(np.int64),
        }
