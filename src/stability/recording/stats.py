"""Tensor -> statistics, on the tensor's device and without waiting for it.

Finite tensors on a CPU take a faster way to the same numbers, `recording.one_pass`.

A tensor becomes a vector in fp64 with an entry for each field of `results.statistics`, which says
what the entries hold. Vectors of parts merge exactly into that of the whole (`merge`).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stability.recording import one_pass
from stability.results.statistics import FIELDS, INDEX, OTHERS, Entries, count

NUMEL, NONFINITE, ABSMAX, MEAN, VAR, FIRST_SHARE, TOKEN_RMS_MEDIAN = (
    INDEX[name]
    for name in ("numel", "nonfinite", "absmax", "mean", "var", "first_share", "token_rms_median")
)
_SUMS = tuple((INDEX[f.name], f.power) for f in FIELDS if f.merge == "sum" and f.power)

CHUNK = 1 << 24
"""Largest number of entries measured at once: bounds the fp64 copies to a few hundred MB."""


def fp64_dtype(device: torch.device) -> torch.dtype:
    """fp64, or fp32 on MPS, which has none: sums of x / max|x| are safe there, only less exact."""
    return torch.float32 if device.type == "mps" else torch.float64


def to_fp64(x: Tensor) -> Tensor:
    """The tensor in `fp64_dtype`."""
    return x.to(fp64_dtype(x.device))


def _moments(x_NTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Statistics of N tensors of T tokens each, and of each token.

    Returns:
        (N, fields), where only the fields of all tensors are measured; and (N, T) each: the rms
        over the token's finite entries, NaN where there is none, and their number.
    """
    if not (numel := x_NTE.shape[1] * x_NTE.shape[2]):
        return _nothing(x_NTE)
    limits = torch.finfo(x_NTE.dtype)
    mag = x_NTE.abs()
    finite = mag <= limits.max  # false for NaN
    n_NT = finite.sum(-1)
    n = n_NT.sum(-1)
    x = torch.nan_to_num(x_NTE, 0.0, 0.0, 0.0)
    # Compiled by torch 2.13 for a CPU, the maximum of an fp16 or bf16 tensor is a wrong number.
    size = to_fp64(x).abs() if torch.compiler.is_compiling() else x.abs()
    scale = to_fp64(size.amax((1, 2)))
    x = to_fp64(x) / torch.where(scale > 0, scale, 1.0)[:, None, None]
    flat = x.flatten(1)
    entries = Entries(
        held_NTE=x_NTE,
        mag_NTE=mag,
        finite_NTE=finite,
        tiny=limits.tiny,
        max=limits.max,
        numel=torch.full_like(n, numel),
        nonfinite=numel - n,
        zeros=count(mag == 0),
        scale=scale,
        scaled_NE=flat,
        mean=flat.sum(1) / n.clamp(min=1),
        token_squares_NT=torch.linalg.vector_norm(x, 2, dim=-1).square(),
    )
    return _vectors(entries), (entries.token_squares_NT / n_NT).sqrt() * scale[:, None], n_NT


def _vectors(entries: Entries) -> Tensor:
    """Every field of all N tensors, (N, fields), in the order of `INDEX`; other fields are NaN."""
    measured = [(f, f.measure(entries)) for f in FIELDS if f.measure is not None]
    counts_NC = torch.stack([m for f, m in measured if f.is_count], 1)
    values_NV = torch.stack([m for f, m in measured if not f.is_count], 1)
    others_NO = values_NV.new_full((len(values_NV), len(OTHERS)), math.nan)
    return torch.cat((counts_NC.to(values_NV.dtype), values_NV, others_NO), 1)


def _nothing(x_NTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`_moments` of tensors without entries, of which torch takes no maximum."""
    n_NT = x_NTE.sum(-1, dtype=torch.int64)
    vectors_NF = x_NTE.new_zeros(len(x_NTE), len(FIELDS), dtype=fp64_dtype(x_NTE.device))
    vectors_NF[:, -len(OTHERS) :] = math.nan
    return vectors_NF, torch.full_like(n_NT, math.nan, dtype=vectors_NF.dtype), n_NT


def merge(parts_KNF: Tensor) -> Tensor:
    """Statistics of the concatenation of K parts: (K, N, fields) -> (N, fields).

    The pairwise rule of Chan, Golub and LeVeque (1979) for K parts at once: the sum of squared
    deviations is that within the parts plus n_k (mean_k - mean)^2 between them. A field that one
    part lacks is NaN; the median over tokens needs the tokens, see `merge_passes`.
    """
    whole = parts_KNF.sum(0)
    scale = parts_KNF[..., ABSMAX].amax(0)
    ratio = parts_KNF[..., ABSMAX] / torch.where(scale > 0, scale, 1.0)
    n = parts_KNF[..., NUMEL] - parts_KNF[..., NONFINITE]
    means = parts_KNF[..., MEAN] * ratio
    mean = (n * means).sum(0) / n.sum(0).clamp(min=1)
    within = parts_KNF[..., VAR] * ratio**2
    whole[..., ABSMAX] = scale
    whole[..., MEAN] = mean
    whole[..., VAR] = (within + n * (means - mean).square()).sum(0)
    for field, power in _SUMS:
        whole[..., field] = (parts_KNF[..., field] * ratio**power).sum(0)
    return whole


Passes = Sequence[tuple[Tensor, Tensor | None]]
"""The passes of one tensor: its vector, and the rms of its tokens or None."""


def merge_passes(passes: Passes) -> Tensor:
    """Statistics of all passes of a tensor together, with the median over tokens: (fields,).

    Args:
        passes: for each its vector, and the rms of its tokens or None, as `measure_tokens` returns
            them.
    """
    return merge_all([passes])[0]


def merge_all(passes_of: Sequence[Passes]) -> Tensor:
    """`merge_passes` of many tensors, (len, fields)."""
    if not passes_of:
        return torch.empty(0, len(FIELDS))
    whole_NF = torch.stack([_merged(passes) for passes in passes_of])
    tokens = {n: found for n, passes in enumerate(passes_of) if (found := _token_rms(passes))}
    rms = [torch.cat(found) if found[1:] else found[0] for found in tokens.values()]
    on_cpu = whole_NF.device.type == "cpu"
    if rms:
        medians = one_pass.medians(rms) if on_cpu else torch.stack([_median(r) for r in rms])
        whole_NF[[*tokens], TOKEN_RMS_MEDIAN] = medians
    return whole_NF


def _merged(passes: Passes) -> Tensor:
    if len(passes) == 1:
        return passes[0][0]
    return merge(torch.stack([v for v, _ in passes])[:, None])[0]


def _token_rms(passes: Passes) -> list[Tensor]:
    return [rms for _, rms in passes if rms is not None and len(rms)]


def _median(values: Tensor) -> Tensor:
    """Median of the values that are not NaN; 0 if there is none. Does not wait for the device."""
    return values.nanquantile(0.5).nan_to_num(0.0)


def square_of(vectors_NF: Tensor) -> Tensor:
    """Sum of squares of all entries of N tensors; NaN if one is not finite."""
    squares = vectors_NF[:, INDEX["rms"]] * vectors_NF[:, ABSMAX].square()
    return squares.sum().masked_fill((vectors_NF[:, NONFINITE] > 0).any(), math.nan)


def measure(x: Tensor) -> Tensor:
    """Statistics of one tensor of any shape: (fields,)."""
    if one_pass.is_able(x) and (found := one_pass.measure(x)) is not None:
        return found[0]
    flat = x.detach().reshape(-1)
    if flat.numel() <= CHUNK:
        return _moments(flat[None, None])[0][0]
    return merge(torch.stack([_moments(part[None, None])[0] for part in flat.split(CHUNK)]))[0]


def measure_tokens(x: Tensor, token_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Statistics of an activation such as x_BTD, and the rms of each of its tokens.

    Returns:
        (fields,) with the share of position 0 of the token axis, and the root mean square over
        each token's finite features, (tokens,), NaN where none is finite.
    """
    if one_pass.is_able(x) and (found := one_pass.measure(x, token_dim)) is not None:
        return found
    x = x.detach()
    tokens_TE = x.flatten(0, -2)
    parts = [_moments(t[None]) for t in tokens_TE.split(max(1, CHUNK // max(x.shape[-1], 1)))]
    vector = merge(torch.stack([v for v, _, _ in parts]))[0] if parts[1:] else parts[0][0][0]
    token_rms, finite = (torch.cat([p[i][0] for p in parts]) for i in (1, 2))
    scale = torch.where(vector[ABSMAX] > 0, vector[ABSMAX], 1.0)
    token_ss = (token_rms / scale).square() * finite
    vector[FIRST_SHARE] = token_ss.reshape(x.shape[:-1]).movedim(token_dim, 0)[:1].nansum()
    return vector, token_rms


def measure_many(tensors: Sequence[Tensor], minus: Sequence[Tensor] | None = None) -> Tensor:
    """Statistics of many tensors, (len, fields).

    Args:
        tensors: on one device.
        minus: of the same shapes and formats. If given, the differences are measured, in fp64.
    """
    if not tensors:
        return torch.empty(0, len(FIELDS))
    if len(tensors) > 1 and tensors[0].dtype.itemsize < 4:  # one copy to fp32 at a time
        if minus is None:
            return torch.cat([measure_many([x]) for x in tensors])
        return torch.cat([measure_many([x], [y]) for x, y in zip(tensors, minus, strict=True)])
    every = [*tensors, *(minus or ())]
    if len({x.dtype for x in every}) > 1 or not one_pass.is_able(*every):
        return _measure_groups(_differences(tensors, minus))
    vectors_NF, refused = one_pass.measure_many(tensors, minus)
    if refused:
        left, subtracted = ([t[i] for i in refused] if t else None for t in (tensors, minus))
        vectors_NF[refused] = _measure_groups(_differences(left or (), subtracted))
    return vectors_NF


def _differences(tensors: Sequence[Tensor], minus: Sequence[Tensor] | None) -> Sequence[Tensor]:
    if minus is None:
        return tensors
    return [to_fp64(x.detach()) - y for x, y in zip(tensors, minus, strict=True)]


def _measure_groups(tensors: Sequence[Tensor]) -> Tensor:
    """Statistics of many tensors, those of one size and dtype taken together."""
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
                measured = _moments(stacked[:, None])[0]
            for i, row in zip(chosen, measured, strict=True):
                rows[i] = row
    return torch.stack([r for r in rows if r is not None])
