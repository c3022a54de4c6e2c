"""Tokens -> endless batches (x_BT, y_BT). NumPy only, no state.

The batch of step t depends on the data, the seed and t alone, so that a resumed run sees what an
undisturbed one saw and every run of a sweep sees the same.
"""

import hashlib
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stability.parts.published import Published

Tokens_N = NDArray[Any]
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]

IGNORED = -100
"""Target of a token that does not count: padding."""
ENTROPY_TOKENS = 4_000_000
"""Entropies are estimated on at most this many of the first training tokens."""


class Source(Published):
    """Base of every source.

    Attributes:
        train, val: tokens, 1-D integer arrays, possibly memory-mapped.
        vocab: number of symbols.
        pad: the symbol that padding shows to the model; padding never counts in the loss.
        entropy_rate: nats per token of the process, where known.
    """

    train: Tokens_N
    val: Tokens_N
    vocab: int
    pad: int = 0
    entropy_rate: float | None = None

    @cached_property
    def sha256(self) -> str:
        """Hash of the tokens, training and validation, in order.

        Each chunk of tokens counts as little-endian uint16, or as uint32 if an id needs it.
        """
        digest = hashlib.sha256()
        for tokens in (self.train, self.val):
            for start in range(0, len(tokens), 1 << 24):
                chunk = tokens[start : start + (1 << 24)]
                dtype = "<u2" if chunk.max() < 1 << 16 else "<u4"
                digest.update(np.asarray(chunk, dtype=dtype).tobytes())
            digest.update(b"|")
        return digest.hexdigest()

    @cached_property
    def entropies(self) -> tuple[float, float]:
        """Unigram and bigram (given the token before) entropy of the training data, in nats."""
        t = np.asarray(self.train[:ENTROPY_TOKENS], dtype=np.int64)
        unigram = _entropy(np.bincount(t))
        pairs = np.unique(t[:-1] * self.vocab + t[1:], return_counts=True)[1]
        return unigram, _entropy(pairs) - _entropy(np.bincount(t[:-1]))

    def info(self) -> dict[str, Any]:
        """What a run keeps about its data."""
        unigram, bigram = self.entropies
        return {
            "sha256": self.sha256,
            "vocab": self.vocab,
            "train_tokens": len(self.train),
            "val_tokens": len(self.val),
            "unigram_entropy": unigram,
            "bigram_entropy": bigram,
            "entropy_rate": self.entropy_rate,
        }

    def batch(self, step: int, size: int, context: int, seed: int, pad_share: float = 0.0) -> Batch:
        """Training batch of a step: random windows of ``context`` + 1 tokens."""
        key = hashlib.blake2b(f"batch/{seed}/{step}".encode(), digest_size=16).digest()
        rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "big")))
        starts = rng.integers(0, len(self.train) - context, size=size)
        return self._windows(self.train, starts, context, pad_share, rng)

    def val_batch(self, index: int, size: int, context: int, pad_share: float = 0.0) -> Batch:
        """Validation batch ``index``: windows from random places, always the same."""
        rng = np.random.Generator(np.random.Philox(key=index))
        starts = rng.integers(0, len(self.val) - context, size=size)
        return self._windows(self.val, starts, context, pad_share, rng)

    def _windows(
        self,
        tokens: Tokens_N,
        starts: NDArray[np.int64],
        context: int,
        pad_share: float,
        rng: np.random.Generator,
    ) -> Batch:
        window = np.stack([tokens[s : s + context + 1] for s in starts]).astype(np.int64)
        x_BT, y_BT = window[:, :-1].copy(), window[:, 1:].copy()
        if pad_share > 0:
            # Uniform lengths with the wanted mean share; every sequence keeps one token.
            most = min(2 * pad_share, 1.0)
            least = 2 * pad_share - most
            padded = rng.uniform(least, most, size=len(starts)) * context
            kept = np.maximum(context - np.round(padded).astype(np.int64), 1)
            behind = np.arange(context) >= kept[:, None]
            x_BT[behind], y_BT[behind] = self.pad, IGNORED
        return x_BT, y_BT


def _entropy(counts: NDArray[Any]) -> float:
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())
