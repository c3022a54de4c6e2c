"""Where tokens come from: the text that ships with Python, files, a Markov chain. Memory-mapped.

To add a source: a `Source` with ``train`` and ``val`` token arrays, ``vocab`` and ``pad``, and a
yaml in ``data/``. Its arguments that name files must end in ``path``: a file that changes is read
again.
"""

import json
import pydoc_data.topics
from bisect import bisect
from functools import lru_cache
from pathlib import Path

import numpy as np

from stability.config import instantiate
from stability.config.knobs import Config, ConfigError
from stability.parts.batches import Source, Tokens_N


def _split(tokens: Tokens_N) -> tuple[Tokens_N, Tokens_N]:
    cut = len(tokens) - len(tokens) // 10
    return tokens[:cut], tokens[cut:]


class PyDocs(Source):
    """The help topics that ship with Python, as UTF-8 bytes: real English, no download.

    The text differs between Python versions, so its hash is part of a run's identity.
    """

    source = "the module pydoc_data.topics of Python"
    vocab = 256

    def __init__(self) -> None:
        topics = pydoc_data.topics.topics
        text = "\n\n".join(f"{name}\n\n{body}" for name, body in sorted(topics.items()))
        self.train, self.val = _split(np.frombuffer(text.encode(), dtype=np.uint8))


class Text(Source):
    """Any UTF-8 file, as bytes; without ``val_path`` its last tenth is for validation."""

    source = "the user"
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

    source = "github.com/karpathy: nanoGPT, llm.c"
    end_of_text = 50256
    """GPT-2's, which its users pad with; a vocabulary without it pads with its last symbol."""

    def __init__(self, path: str | None, val_path: str | None, vocab: int) -> None:
        self.vocab, self.pad = vocab, min(self.end_of_text, vocab - 1)
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

    source = "this package"
    length, seed = 500_000, 2002
    max_states = 2048
    """Symbols: the matrix has their square of entries."""

    def __init__(self, vocab: int) -> None:
        states = vocab - 1
        if not 2 <= states < self.max_states:
            legal = f"must be 3 to {self.max_states:,} for data=markov"
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

OTHER_FORMATS = {
    b"\x93NUMPY": "an .npy file",
    b"PK\x03\x04": "a zip archive (.npz, .pt)",
    b"\x1f\x8b": "a gzip file",
    b"PAR1": "a parquet file",
    (20240801).to_bytes(4, "little"): "llm.c's file of uint32 tokens",
}
"""What a token file may be by mistake, by its first bytes."""


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
    found = np.memmap(file, dtype=np.uint8, mode="r")
    if (found == 0).any():
        raise ConfigError(key, path, "must be UTF-8 text, which has no byte 0: is it UTF-16?")
    return found


def _token_file(path: str | None, key: str, vocab: int) -> Tokens_N:
    file = _existing(path, key)
    size = file.stat().st_size
    _refuse_other_formats(file, path, key)
    head = np.fromfile(file, dtype="<i4", count=3)
    if len(head) == 3 and head[0] == MAGIC:
        count = int(head[2])
        if head[1] != 1 or count < 1 or size < HEADER + 2 * count:
            raise ConfigError(
                key, path, f"is truncated or of another version: its header says {count} tokens"
            )
        tokens: Tokens_N = np.memmap(file, dtype="<u2", mode="r", offset=HEADER, shape=(count,))
    elif size % 2:
        raise ConfigError(key, path, f"holds {size} bytes: an odd number cannot be uint16 tokens")
    else:
        tokens = np.memmap(file, dtype="<u2", mode="r")
        _refuse_wider(tokens, path, key)
    largest = max(
        (int(tokens[i : i + (1 << 24)].max()) for i in range(0, len(tokens), 1 << 24)), default=0
    )
    if largest >= vocab:
        raise ConfigError(
            key, path, f"holds token {largest}; data.vocab={vocab} allows up to {vocab - 1}"
        )
    return tokens


def _refuse_other_formats(file: Path, path: str | None, key: str) -> None:
    with file.open("rb") as opened:
        start = opened.read(max(map(len, OTHER_FORMATS)))
    for magic, what in OTHER_FORMATS.items():
        if start.startswith(magic):
            raise ConfigError(key, path, f"must hold uint16 tokens alone, and is {what}")


def _refuse_wider(tokens: Tokens_N, path: str | None, key: str) -> None:
    """Refuse bare numbers that are wider than uint16: every second uint16 is then 0, or tiny.

    The upper half of a uint32 is below 16 for vocabularies of up to a million symbols.
    """
    if len(tokens) < 2:
        return
    upper, lower = sorted(int(tokens[start::2].max()) for start in (0, 1))
    if upper == 0 < lower or (upper < 16 and lower > 255 and len(tokens) >= 64):
        what = "0" if upper == 0 else f"at most {upper}"
        raise ConfigError(
            key, path, f"must hold uint16 tokens, and every second one is {what}: is it uint32?"
        )


@lru_cache(maxsize=4)
def _cached(build: str, stamps: tuple[tuple[int, int], ...]) -> Source:
    node = json.loads(build)
    made = instantiate.build(node, "data.build", kind=Source)
    with instantiate.refusing_errors_of("data.build", node["_target_"], "is incomplete", build):
        for name in ("train", "val"):
            if not hasattr(made, name):
                raise instantiate.RefusedArgument(
                    f"{type(made).__name__} has no attribute {name!r}"
                )
        for tokens in (made.train, made.val):
            if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
                raise instantiate.RefusedArgument("its tokens must be 1-D arrays of whole numbers")
        if not 0 <= made.pad < made.vocab:
            raise instantiate.RefusedArgument(
                f"it pads with {made.pad}, but has {made.vocab} symbols"
            )
    return made


def source(config: Config) -> Source:
    """The source that a config names, checked against the model's shape.

    Raises:
        ConfigError: the file is missing, empty, damaged, too short, or beyond the vocabulary.
    """
    node = config.data.build
    files = [Path(v).expanduser() for k, v in sorted(node.items()) if k.endswith("path") and v]
    stamps = tuple((f.stat().st_mtime_ns, f.stat().st_size) for f in files if f.is_file())
    found = _cached(json.dumps(node), stamps)
    context = config.model.context
    for split, tokens in (("training", found.train), ("validation", found.val)):
        if len(tokens) <= context:
            legal = f"must be < {len(tokens)}, the number of {split} tokens"
            raise ConfigError("model.context", context, legal)
    vocab = config.model.vocab
    if vocab != "auto" and vocab < found.vocab:
        raise ConfigError(
            "model.vocab", vocab, f"must be auto or >= {found.vocab}, the data's symbols"
        )
    return found


def vocabulary(config: Config, found: Source) -> int:
    """Rows of the embedding: ``model.vocab``, or as many as the data has symbols."""
    vocab = config.model.vocab
    return found.vocab if vocab == "auto" else int(vocab)
