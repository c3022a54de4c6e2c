"""The loops of `recording.one_pass`, which numba compiles for the processor they run on.

They are written for vector instructions: a loop has few sums, and works on the bits of numbers
where an operation on floats would not be one (the largest of some, exp).
"""

import math
from typing import Any

import numba
import numpy as np
from numba import carray, types
from numba.extending import intrinsic

BLOCK = 512
"""Entries that are read three times while they lie in the first cache."""

CANCELLED = 1e-3
"""Where the squared deviations are a smaller share of the squares, they get a pass of their own."""

_LOG2, _PER_LOG2 = math.log(2), 1 / math.log(2)
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11 = (1 / math.factorial(n) for n in range(2, 12))


def _compiled(function: Any) -> Any:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    options["fastmath"] = {"reassoc", "nsz", "contract"}
    try:  # kept on disk, where its folder can be written to
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return numba.njit(**options)(function)


@intrinsic
def _pointer(typing_context, address, like):  # type: ignore[no-untyped-def]
    """An address as a pointer to numbers of the format of an array."""

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(address, like), code


@_compiled
def _measure(x_TE, bits_TE, limits, inner, length, out_F, rms_T):  # type: ignore[no-untyped-def]
    """Fill ``out_F`` as `one_pass.FIELDS` says; false if a number is not finite, or too large."""
    tiny, half, mask, least, most = limits
    tokens, features = x_TE.shape
    zeros = small = near_max = 0
    total = size = square = first = 0.0
    largest = bits_TE.dtype.type(0)
    for t in range(tokens):
        token_square = 0.0
        for start in range(0, features, BLOCK):
            values_E = x_TE[t, start : start + BLOCK]
            bits_E = bits_TE[t, start : start + BLOCK]
            low, high = mask, bits_TE.dtype.type(0)
            for e in range(len(values_E)):
                magnitude = bits_TE.dtype.type(bits_E[e] & mask)
                low, high = min(low, magnitude), max(high, magnitude)
            if high >= most:
                return False
            largest = max(largest, high)
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
                    magnitude = bits_TE.dtype.type(bits_E[e] & mask)
                    zeros += magnitude == 0
                    small += magnitude < tiny
                    near_max += magnitude >= half
        rms_T[t] = math.sqrt(token_square / features)
        square += token_square
        if length and (t // inner) % length == 0:
            first += token_square
    if 0 < largest < least:
        return False
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


# Tensors come as addresses: ``Tensor.numpy`` would forbid for good that their storage is resized,
# which FSDP does, and costs as much as the statistics of a small weight. ``like`` and ``bits`` are
# empty arrays of the tensors' format and of integers of the same length.


@_compiled
def tokens(address, like, bits, features, limits, inner, length, out_F, rms_T):  # type: ignore[no-untyped-def]
    """`_measure` of one tensor."""
    shape = (len(rms_T), features)
    x_TE = carray(_pointer(address, like), shape)
    bits_TE = carray(_pointer(address, bits), shape)
    return _measure(x_TE, bits_TE, limits, inner, length, out_F, rms_T)


@_compiled
def tensors(addresses, like, bits, sizes, limits, out_NF, done_N):  # type: ignore[no-untyped-def]
    """`_measure` of N tensors without tokens."""
    rms_T = np.empty(1)
    for n in range(len(sizes)):
        x_TE = carray(_pointer(addresses[n], like), (1, sizes[n]))
        bits_TE = carray(_pointer(addresses[n], bits), (1, sizes[n]))
        done_N[n] = _measure(x_TE, bits_TE, limits, 1, 0, out_NF[n], rms_T)


@_compiled
def differences(addresses, others, like, sizes, limits, out_NF, done_N):  # type: ignore[no-untyped-def]
    """`_measure` of N differences in fp64, of what lies at ``addresses`` minus ``others``."""
    rms_T = np.empty(1)
    for n in range(len(sizes)):
        new = carray(_pointer(addresses[n], like), sizes[n])
        old = carray(_pointer(others[n], like), sizes[n])
        moved_TE = np.empty((1, sizes[n]))
        for i in range(len(new)):
            moved_TE[0, i] = np.float64(new[i]) - np.float64(old[i])
        done_N[n] = _measure(moved_TE, moved_TE.view(np.int64), limits, 1, 0, out_NF[n], rms_T)


@_compiled
def scores(address, like, bits, limits, seen_Q, scratch_T, powers_T, flat, entropy_NQ):  # type: ignore[no-untyped-def]
    """See `one_pass.seen_scores`; false if a score is not finite.

    ``powers_T`` are the bits of ``scratch_T``, T numbers in fp64.
    """
    shape = (*entropy_NQ.shape, len(scratch_T))
    scores_NQT = carray(_pointer(address, like), shape)
    bits_NQT = carray(_pointer(address, bits), shape)
    integer, (mask, infinite), sign = bits.dtype.type, limits, bits.itemsize * 8 - 1
    start, one = 0, np.empty(1, bits.dtype)
    for n in range(shape[0]):
        for q in range(shape[1]):
            row, row_bits = scores_NQT[n, q, : seen_Q[q]], bits_NQT[n, q, : seen_Q[q]]
            flat[start : start + len(row)] = row
            start += len(row)
            order, magnitude = integer(-mask - 1), integer(0)
            for t in range(len(row)):  # integers in the order of the numbers
                b = row_bits[t]
                magnitude = max(magnitude, integer(b & mask))
                order = max(order, integer(b ^ (integer(b >> sign) & mask)))
            if magnitude >= infinite:
                return False
            one[0] = order ^ (integer(order >> sign) & mask)
            most = one.view(like.dtype)[0]
            # exp(z) = 2**k exp(r) with |r| <= ln(2) / 2; the bits of 2**k are k + 1023.
            for t in range(len(row)):
                z = max(np.float64(row[t] - most), -700.0)
                powers_T[t] = np.int64(np.floor(z * _PER_LOG2 + 0.5) + 1023.0) << 52
            total = below = 0.0
            for t in range(len(row)):
                z = max(np.float64(row[t] - most), -700.0)
                r = z - np.floor(z * _PER_LOG2 + 0.5) * _LOG2
                e = _C6 + r * (_C7 + r * (_C8 + r * (_C9 + r * (_C10 + r * _C11))))
                e = 1.0 + r * (1.0 + r * (_C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * e)))))
                e *= scratch_T[t]
                total += e
                below += z * e
            entropy_NQ[n, q] = math.log(total) - below / total
    return True
