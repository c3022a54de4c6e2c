"""Token source -> endless batches (x_BT, y_BT). NumPy only, memory-mapped, no state.

The batch of step t depends on the data, the seed and t alone, so that a resumed run sees what an
undisturbed one saw and every run of a sweep sees the same.

To add a source: a class with ``train`` and ``val`` token arrays, ``vocab`` and ``pad``, and a yaml
in ``data/``.
"""

import hashlib
import json
import pydoc_data.topics
from bisect import bisect
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stability import construct
from stability.config import ConfigError

Tokens_N = NDArray[Any]
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]

IGNORED = -100
ENTROPY_TOKENS = 4_000_000
"""Entropies are estimated on at most this many of the first training tokens."""


class Source:
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
        """Hash of the tokens, training and validation, in order, as little-endian uint16."""
        digest = hashlib.sha256()
        for tokens in (self.train, self.val):
            for start in range(0, len(tokens), 1 << 24):
                digest.update(np.asarray(tokens[start : start + (1 << 24)], dtype="<u2").tobytes())
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
        """Validation batch ``index``: windows from evenly spread places, always the same."""
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


def _split(tokens: Tokens_N) -> tuple[Tokens_N, Tokens_N]:
    cut = len(tokens) - len(tokens) // 10
    return tokens[:cut], tokens[cut:]


class PyDocs(Source):
    """The help topics that ship with Python, as UTF-8 bytes: real English, no download.

    The text differs between Python versions, so its hash is part of a run's identity.
    """

    vocab = 256

    def __init__(self) -> None:
        topics = pydoc_data.topics.topics
        text = "\n\n".join(f"{name}\n\n{body}" for name, body in sorted(topics.items()))
        self.train, self.val = _split(np.frombuffer(text.encode(), dtype=np.uint8))


class Text(Source):
    """Any UTF-8 file, as bytes; without ``val_path`` its last tenth is for validation."""

    vocab = 256

    def __init__(self, path: str | None, val_path: str | None) -> None:
        tokens = _bytes_of(path, "data.path")
        if val_path is None:
            self.train, self.val = _split(tokens)
        else:
            self.train, self.val = tokens, _bytes_of(val_path, "data.val_path")


class Tokens(Source):
    """Token ids on disk, memory-mapped: nanoGPT's bare uint16 or llm.c's file with its header.

    llm.c's header is 256 int32: magic 20240520, version 1, number of tokens.
    """

    pad = 50256
    """GPT-2's end-of-text, which its users pad with."""

    def __init__(self, path: str | None, val_path: str | None, vocab: int) -> None:
        self.vocab = vocab
        tokens = _token_file(path, "data.path", vocab)
        if val_path is None:
            self.train, self.val = _split(tokens)
        else:
            self.train, self.val = tokens, _token_file(val_path, "data.val_path", vocab)


class Markov(Source):
    """A seeded Markov chain of order one, the same on every machine, with a known entropy rate.

    Each row of the transition matrix is softmax of 2 * standard normals; 500,000 tokens. The last
    symbol of the vocabulary never occurs in the chain: only padding uses it.
    """

    length, seed = 500_000, 20_02
    most = 2048
    """Symbols: the matrix has their square of entries."""

    def __init__(self, vocab: int) -> None:
        states = vocab - 1
        if not 2 <= states < self.most:
            legal = f"must be 3 to {self.most:,} for data=markov"
            raise ConfigError("data.vocab", vocab, legal)
        rng = np.random.Generator(np.random.Philox(key=self.seed))
        p = np.exp(2 * rng.standard_normal((states, states)))
        p /= p.sum(1, keepdims=True)
        cumulative, draws = np.cumsum(p, axis=1).tolist(), rng.random(self.length).tolist()
        chain, state = [], 0
        for u in draws:
            state = min(bisect(cumulative[state], u), states - 1)
            chain.append(state)
        stationary = np.linalg.matrix_power(p, 1024)[0]
        self.entropy_rate = float(-(stationary[:, None] * p * np.log(p)).sum())
        self.vocab, self.pad = vocab, vocab - 1
        self.train, self.val = _split(np.array(chain, dtype=np.uint16))


MAGIC, HEADER = 20240520, 256 * 4


def _existing(path: str | None, key: str) -> Path:
    if path is None:
        raise ConfigError(key, None, "must name a file")
    file = Path(path).expanduser()
    try:
        if not file.is_file():
            raise ConfigError(
                key, path, "must name a file" + ("" if file.exists() else " that exists")
            )
        if file.stat().st_size == 0:
            raise ConfigError(key, path, "is empty")
        with file.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(key, path, f"cannot be read ({error.strerror})") from error
    return file


def _bytes_of(path: str | None, key: str) -> Tokens_N:
    file = _existing(path, key)
    try:
        file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(key, path, f"must be UTF-8 text (byte {error.start} is not)") from error
    return np.memmap(file, dtype=np.uint8, mode="r")


def _token_file(path: str | None, key: str, vocab: int) -> Tokens_N:
    file = _existing(path, key)
    size = file.stat().st_size
    head = np.fromfile(file, dtype="<i4", count=3)
    if len(head) == 3 and head[0] == MAGIC:
        count = int(head[2])
        if head[1] != 1 or count < 1 or size < HEADER + 2 * count:
            raise ConfigError(
                key, path, f"is truncated or of another version: its header says {count} tokens"
            )
        tokens: Tokens_N = np.memmap(file, dtype="<u2", mode="r", offset=HEADER, shape=(count,))
    elif size % 2:
        raise ConfigError(key, path, f"holds {size} bytes: no whole number of uint16 tokens")
    else:
        tokens = np.memmap(file, dtype="<u2", mode="r")
    largest = max(
        (int(tokens[i : i + (1 << 24)].max()) for i in range(0, len(tokens), 1 << 24)), default=0
    )
    if largest >= vocab:
        raise ConfigError(
            key, path, f"holds token {largest}; data.vocab={vocab} allows up to {vocab - 1}"
        )
    return tokens


@lru_cache(maxsize=4)
def _cached(build: str, stamps: tuple[tuple[int, int], ...]) -> Source:
    made = construct.build(json.loads(build), "data.build")
    if not isinstance(made, Source):
        raise ConfigError("data.build", build, "must build a stability.data.Source")
    return made


def source(config: Mapping[str, Any]) -> Source:
    """The source that a config names, checked against the model's shape.

    Raises:
        ConfigError: the file is missing, empty, damaged, too short, or beyond the vocabulary.
    """
    node = config["data"]["build"]
    files = [Path(v).expanduser() for k, v in sorted(node.items()) if k.endswith("path") and v]
    stamps = tuple((f.stat().st_mtime_ns, f.stat().st_size) for f in files if f.is_file())
    found = _cached(json.dumps(node, sort_keys=True), stamps)
    context = config["model"]["context"]
    for split, tokens in (("training", found.train), ("validation", found.val)):
        if len(tokens) <= context:
            legal = f"must be < {len(tokens)}, the number of {split} tokens"
            raise ConfigError("model.context", context, legal)
    vocab = config["model"]["vocab"]
    if vocab != "auto" and vocab < found.vocab:
        raise ConfigError(
            "model.vocab", vocab, f"must be auto or >= {found.vocab}, the data's symbols"
        )
    return found


def vocabulary(config: Mapping[str, Any], found: Source) -> int:
    """Rows of the embedding: ``model.vocab``, or as many as the data has symbols."""
    vocab = config["model"]["vocab"]
    return found.vocab if vocab == "auto" else int(vocab)
