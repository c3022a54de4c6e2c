"""The statistics of a finite tensor on a CPU in one pass over its memory.

`recording.stats` is the reference: it reads any tensor on any device. Here the same numbers come
from one loop that numba compiles, some 40 times faster on a CPU. Its sums are in fp64 of the values
as they are: the square of an fp32, bf16 or fp16 number cannot leave the range of fp64.
"""

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stability.results.statistics import INDEX

try:
    import numba
except ImportError:  # not built for this Python: `recording.stats` measures every tensor
    numba = None  # type: ignore[assignment]

FIELDS = (
    *("numel", "nonfinite", "zeros", "subnormal", "near_max"),
    *("mean", "var", "rms", "absmax", "absmean", "first_share"),
)
"""What the loop fills: the beginning of the vector of `recording.stats`."""

COVERS = tuple(INDEX)[: len(FIELDS)] == FIELDS
"""Whether the vector has no field that is unknown to the loop."""

BLOCK = 512
"""Entries that are read three times while they lie in the first cache."""

CANCELLED = 1e-3
"""Where the squared deviations are a smaller share of the squares, they get a pass of their own."""

WIDEST = 1e140
"""An fp64 tensor is measured if its largest magnitude lies between 1/WIDEST and WIDEST."""


def is_able(x: Tensor) -> bool:
    """Whether `measure` can read a tensor; False inside a compiled graph."""
    return (
        numba is not None
        and COVERS
        and not torch.compiler.is_compiling()
        and type(x) in (Tensor, torch.nn.Parameter)
        and x.device.type == "cpu"
        and x.layout == torch.strided
        and x.numel() > 0
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
    limits = _limits(x.dtype)
    features = x.numel() if token_dim is None else x.shape[-1]
    values = x.detach().to(torch.float32) if x.dtype.itemsize < 4 else x.detach()
    values = values.contiguous()
    x_TE = _array(values).reshape(-1, features)
    inner, length = 1, 0
    if token_dim is not None:
        inner, length = math.prod(x.shape[token_dim + 1 : -1]), x.shape[token_dim]
    out_F, rms_T = np.full(len(INDEX), math.nan), np.empty(len(x_TE))
    integer = _integer(x.dtype)
    if not _loop(integer)(x_TE, x_TE.view(integer), limits, inner, length, out_F, rms_T):
        return None
    if x.dtype == torch.float64 and out_F[8] and not 1 / WIDEST < out_F[8] < WIDEST:
        return None
    return torch.from_numpy(out_F), torch.from_numpy(rms_T)


class _Memory:
    """The memory of a contiguous tensor, for numpy to read.

    ``Tensor.numpy`` would do but for one thing: it forbids the storage to be resized for good, and
    FSDP resizes storages.
    """

    def __init__(self, x: Tensor) -> None:
        self.__array_interface__ = {
            "data": (x.data_ptr(), True),
            "shape": (x.numel(),),
            "typestr": f"<f{x.dtype.itemsize}",
            "version": 3,
        }
        self._alive = x


def _array(x: Tensor) -> np.ndarray[Any, Any]:
    return np.asarray(_Memory(x))


def median(values: Tensor) -> float:
    """Median of the values that are not NaN; 0 if there is none."""
    found = values.numpy()
    found = found[~np.isnan(found)]
    n = len(found)
    if not n:
        return 0.0
    below, above = (n - 1) // 2, n // 2
    ordered = np.partition(found, (below, above))
    return float(ordered[below] + (ordered[above] - ordered[below]) / 2)


@cache
def _limits(dtype: torch.dtype) -> tuple[Any, ...]:
    """Bits of the smallest normal number, of half the largest and of infinity; mask of the sign."""
    info, integer = torch.finfo(dtype), _integer(dtype)
    wide = np.float64 if dtype == torch.float64 else np.float32
    found = (wide(value).view(integer) for value in (info.tiny, info.max / 2, math.inf))
    return (*found, integer(np.iinfo(integer).max))


def _integer(dtype: torch.dtype) -> Any:
    """The integers that hold the bits of the format that the loop reads: fp64 for fp64, or fp32."""
    return np.int64 if dtype == torch.float64 else np.int32


@cache
def _loop(integer: Any) -> Any:
    """The loop over numbers that are as long as an integer type, compiled."""

    def fill(x_TE, bits_TE, limits, inner, length, out_F, rms_T):  # type: ignore[no-untyped-def]
        """Fill ``out_F`` with the values of `FIELDS`; false if a number is not finite."""
        tiny, half, infinite, mask = limits
        tokens, features = x_TE.shape
        zeros = small = near_max = 0
        total = size = square = first = 0.0
        largest = integer(0)
        for t in range(tokens):
            token_square = 0.0
            for start in range(0, features, BLOCK):
                values_E = x_TE[t, start : start + BLOCK]
                bits_E = bits_TE[t, start : start + BLOCK]
                low, high = mask, integer(0)
                for e in range(len(values_E)):
                    magnitude = integer(bits_E[e] & mask)
                    low, high = min(low, magnitude), max(high, magnitude)
                if high >= infinite:
                    return False
                largest = max(largest, high)
                # Each loop has few sums: else the compiler gives up on vector instructions.
                block_total = block_size = block_square = 0.0
                for e in range(len(values_E)):
                    value = np.float64(values_E[e])
                    block_total += value
                    block_size += abs(value)
                    block_square += value * value
                total += block_total
                size += block_size
                token_square += block_square
                if low < tiny or high >= half:
                    for e in range(len(values_E)):
                        magnitude = integer(bits_E[e] & mask)
                        zeros += magnitude == 0
                        small += magnitude < tiny
                        near_max += magnitude >= half
            rms_T[t] = math.sqrt(token_square / features)
            square += token_square
            if length and (t // inner) % length == 0:
                first += token_square
        numel = tokens * features
        mean = total / numel
        deviation = square - numel * mean * mean
        if deviation < CANCELLED * square:
            deviation = 0.0
            for t in range(tokens):
                for e in range(features):
                    deviation += (np.float64(x_TE[t, e]) - mean) ** 2
        scale = np.float64(np.array([largest]).view(x_TE.dtype)[0])
        unit = scale if scale > 0 else 1.0
        out_F[0], out_F[1], out_F[2], out_F[3], out_F[4] = numel, 0, zeros, small - zeros, near_max
        out_F[5], out_F[6], out_F[7] = mean / unit, deviation / unit / unit, square / unit / unit
        out_F[8], out_F[9] = scale, size / unit
        out_F[10] = first / unit / unit if length else math.nan
        return True

    return _compiled(fill)


def seen_scores(scores_NQT: Tensor, seen_Q: Tensor) -> tuple[Tensor, Tensor]:
    """The scores that a query may see, flat, and the entropy of its attention in nats, (N, Q).

    With m the largest score s of a row, z = s - m and Z = sum exp(z), the entropy
    -sum a ln a of a = exp(z) / Z is ln Z - sum z exp(z) / Z.

    Args:
        scores_NQT: of N heads.
        seen_Q: how many keys, from the first on, each query sees.
    """
    seen, integer = seen_Q.numpy(), _integer(scores_NQT.dtype)
    flat = torch.empty(len(scores_NQT) * int(seen.sum()), dtype=scores_NQT.dtype)
    entropy_NQ = torch.empty(scores_NQT.shape[:2], dtype=scores_NQT.dtype)
    scores = _array(scores_NQT).reshape(scores_NQT.shape)
    power_T = np.empty(scores_NQT.shape[-1])
    _score_loop(integer)(
        scores, scores.view(integer), seen, flat.numpy(), entropy_NQ.numpy(),
        power_T, power_T.view(np.int64),
    )  # fmt: skip
    return flat, entropy_NQ


@cache
def _score_loop(integer: Any) -> Any:
    """The loop of `seen_scores`, compiled.

    Its parts are written for vector instructions, which neither `max` of floats nor `math.exp` has.
    """
    sign, mask = np.iinfo(integer).bits - 1, integer(np.iinfo(integer).max)
    lowest = integer(np.iinfo(integer).min)
    log2, per_log2 = math.log(2), 1 / math.log(2)
    c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 = (1 / math.factorial(n) for n in range(2, 12))

    def fill(scores_NQT, bits_NQT, seen_Q, flat, entropy_NQ, power_T, bits_T):  # type: ignore[no-untyped-def]
        start, one = 0, np.empty(1, dtype=bits_NQT.dtype)
        for n in range(scores_NQT.shape[0]):
            for q in range(len(seen_Q)):
                scores = scores_NQT[n, q, : seen_Q[q]]
                bits = bits_NQT[n, q, : seen_Q[q]]
                flat[start : start + len(scores)] = scores
                start += len(scores)
                order = lowest
                for t in range(len(scores)):  # integers in the order of the numbers
                    order = max(order, integer(bits[t] ^ (integer(bits[t] >> sign) & mask)))
                one[0] = order ^ (integer(order >> sign) & mask)
                most = one.view(scores_NQT.dtype)[0]
                # exp(z) = 2**k exp(r) with |r| <= ln(2) / 2; the bits of 2**k are k + 1023.
                for t in range(len(scores)):
                    z = max(np.float64(scores[t] - most), -700.0)
                    bits_T[t] = np.int64(np.floor(z * per_log2 + 0.5) + 1023.0) << 52
                total = below = 0.0
                for t in range(len(scores)):
                    z = max(np.float64(scores[t] - most), -700.0)
                    r = z - np.floor(z * per_log2 + 0.5) * log2
                    e = c6 + r * (c7 + r * (c8 + r * (c9 + r * (c10 + r * c11))))
                    e = 1.0 + r * (1.0 + r * (c2 + r * (c3 + r * (c4 + r * (c5 + r * e)))))
                    e *= power_T[t]
                    total += e
                    below += z * e
                entropy_NQ[n, q] = math.log(total) - below / total
        return 0

    return _compiled(fill)


def _compiled(function: Any) -> Any:
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"reassoc", "nsz", "contract"},
    }
    try:  # kept on disk, where its folder can be written to
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return numba.njit(**options)(function)
