"""The statistics of finite tensors on a CPU in one pass over their memory.

`recording.stats` is the reference: it reads any tensor on any device. Here the same numbers come
from one compiled loop, some 40 times faster on a CPU. Its sums are in fp64 of the values as they
are: the square of an fp32, bf16 or fp16 number cannot leave the range of fp64.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stability.results.statistics import INDEX, Array

try:
    from stability.recording import compiled_loops
except ImportError:  # numba is not built for this Python: `recording.stats` measures every tensor
    compiled_loops = None  # type: ignore[assignment]

FIELDS = (
    *("numel", "nonfinite", "zeros", "subnormal", "near_max"),
    *("mean", "var", "rms", "absmax", "absmean", "first_share"),
)
"""What the loop fills: the beginning of the vector of `recording.stats`."""

COVERS = tuple(INDEX)[: len(FIELDS)] == FIELDS
"""Whether the vector has no field that is unknown to the loop."""

WIDEST = 1e140
"""An fp64 tensor is measured if its largest magnitude lies between 1/WIDEST and WIDEST."""


PLAIN = (Tensor, torch.nn.Parameter)
"""Types of tensors whose memory holds their numbers."""

LARGEST_COPY = 1 << 24
"""Entries of the largest 16-bit tensor that is copied to fp32."""


def is_able(*tensors: Tensor) -> bool:
    """Whether tensors can be read here; False inside a compiled graph."""
    in_use = compiled_loops is not None and COVERS and not torch.compiler.is_compiling()
    return in_use and all(map(_is_readable, tensors))


def _is_readable(x: Tensor) -> bool:
    return (
        type(x) in PLAIN
        and x.is_cpu
        and x.layout == torch.strided
        and not x.is_neg()  # its memory holds the negated numbers
        and x.numel() > 0
        and (x.dtype.itemsize >= 4 or x.numel() <= LARGEST_COPY)
        and x.data_ptr() != 0  # FSDP frees the memory of parameters between their uses
    )


def measure(x: Tensor, token_dim: int | None = None) -> tuple[Tensor, Tensor] | None:
    """The vector of a tensor as `recording.stats` makes it, and the rms of each token.

    Args:
        x: of a floating format.
        token_dim: the axis that counts tokens, whose features lie on the last axis; None if the
            tensor has no tokens: then it is one.

    Returns:
        None if the tensor is not finite, or its squares may leave the range of fp64.
    """
    features = x.numel() if token_dim is None else x.shape[-1]
    inner, length = 1, 0
    if token_dim is not None:
        inner, length = math.prod(x.shape[token_dim + 1 : -1]), x.shape[token_dim]
    held, form = _held(x), _format(x.dtype)
    out_F, rms_T = np.full(len(INDEX), math.nan), np.empty(x.numel() // features)
    if not compiled_loops.tokens(
        held.data_ptr(), form.like, form.bits, features, form.limits, inner, length, out_F, rms_T
    ):
        return None
    return torch.from_numpy(out_F), torch.from_numpy(rms_T)


def measure_many(
    tensors: Sequence[Tensor], minus: Sequence[Tensor] | None = None
) -> tuple[Tensor, list[int]]:
    """Vectors of many tensors, (N, fields), and the places of those that `measure` refuses.

    Args:
        tensors: of one floating format.
        minus: of the same shapes and format. If given, the differences are measured, in fp64.
    """
    held, form = [_held(x) for x in tensors], _format(tensors[0].dtype)
    addresses, sizes = _addresses(held), np.array([x.numel() for x in held])
    out_NF, done_N = np.full((len(held), len(INDEX)), math.nan), np.zeros(len(held), dtype=bool)
    if minus is None:
        compiled_loops.tensors(
            addresses, form.like, form.bits, sizes, form.limits, out_NF, done_N
        )  # fmt: skip
    else:
        held_minus, wide = [_held(x) for x in minus], _format(torch.float64)
        compiled_loops.differences(
            addresses, _addresses(held_minus), form.like, sizes, wide.limits, out_NF, done_N
        )
    return torch.from_numpy(out_NF), np.flatnonzero(~done_N).tolist()


def seen_scores(scores_NQT: Tensor, seen_Q: Array) -> tuple[Tensor, Tensor] | None:
    """The scores that a query may see, flat, and the entropy of its attention in nats, (N, Q).

    With m the largest score s of a row, z = s - m and Z = sum exp(z), the entropy
    -sum a ln a of a = exp(z) / Z is ln Z - sum z exp(z) / Z.

    Args:
        scores_NQT: of N heads, fp32 or fp64.
        seen_Q: how many keys, from the first on, each query sees.

    Returns:
        None if a score is not finite.
    """
    held, form = scores_NQT.contiguous(), _format(scores_NQT.dtype)
    flat = held.new_empty(len(held) * int(seen_Q.sum()))
    entropy_NQ = held.new_empty(held.shape[:2])
    scratch_T, limits = np.empty(held.shape[-1]), (form.limits[2], form.infinite)
    if not compiled_loops.scores(
        held.data_ptr(), form.like, form.bits, limits, seen_Q,
        scratch_T, scratch_T.view(np.int64), flat.numpy(), entropy_NQ.numpy(),
    ):  # fmt: skip
        return None
    return flat, entropy_NQ


def medians(values: Sequence[Tensor]) -> Tensor:
    """Median of the values of each tensor that are not NaN; 0 if there is none, (len,).

    Tensors of one length are taken together.
    """
    found_N = np.empty(len(values))
    by_length: dict[int, list[int]] = {}
    for place, one in enumerate(values):
        by_length.setdefault(len(one), []).append(place)
    for places in by_length.values():
        values_NT = np.stack([values[place].numpy() for place in places])
        found_N[places] = _middle(values_NT)
        for n in np.flatnonzero(np.isnan(values_NT).any(1)):
            found_N[places[n]] = _median(values_NT[n])
    return torch.from_numpy(found_N)


def _median(values: Array) -> float:
    found = values[~np.isnan(values)]
    return float(_middle(found)) if len(found) else 0.0


def _middle(values_NT: Array) -> Array:
    """Median over the last axis."""
    time = values_NT.shape[-1]
    below, above = (time - 1) // 2, time // 2
    ordered_NT = np.partition(values_NT, (below, above))
    low = ordered_NT[..., below]
    return np.asarray(low + (ordered_NT[..., above] - low) / 2)


class Format(NamedTuple):
    """A number format as the loops need it; they read 16-bit numbers as fp32."""

    like: np.ndarray[Any, Any]
    """Empty, of the format that is read."""
    bits: np.ndarray[Any, Any]
    """Empty, of integers of the same length."""
    limits: tuple[Any, ...]
    """Magnitudes as integers: the smallest normal number, half of the largest, the mask of the
    sign; and, of a tensor's largest, the smallest that is measured and the smallest that is not."""
    infinite: Any
    """Infinity as an integer."""


@cache
def _format(dtype: torch.dtype) -> Format:
    is_wide = dtype == torch.float64
    real, integer = (np.float64, np.int64) if is_wide else (np.float32, np.int32)
    least, most = (1 / WIDEST, WIDEST) if is_wide else (0.0, math.inf)
    info = torch.finfo(dtype)
    tiny, half, low, high = (
        real(value).view(integer) for value in (info.tiny, info.max / 2, least, most)
    )
    limits = (tiny, half, integer(np.iinfo(integer).max), low, high)
    infinite = real(math.inf).view(integer)
    return Format(np.empty(0, real), np.empty(0, integer), limits, infinite)


def _held(x: Tensor) -> Tensor:
    """The values in a format that the loops read, one after the other in memory."""
    x = x.detach()
    return (x.to(torch.float32) if x.dtype.itemsize < 4 else x).contiguous()


def _addresses(tensors: Sequence[Tensor]) -> np.ndarray[Any, Any]:
    return np.array([x.data_ptr() for x in tensors], dtype=np.int64)
