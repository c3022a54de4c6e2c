"""Reads and checks what the theory of a run needs: its config and the tokens of step 0."""

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import yaml

from stability.config import rules
from stability.config.knobs import KNOBS, Config, ConfigError, lookup
from stability.results.run_row import LOADER
from stability.results.schema import BATCH_FILE, CONFIG_FILE, RUN_FILE, THEORY_FILE
from stability.theory.limits import NoTheory
from stability.theory.recursion import Tokens

VERSION = 6
"""Part of every cache key: raise it when the numbers change."""

THEORY_KNOBS = (
    *("depth", "seed", "init.embed_std", "train.accumulate", "model.width", "model.heads"),
    *("model.mlp_ratio", "model.position", "model.causal", "model.sublayers"),
    *("model.tie_embeddings", "model.dropout", "model.vocab"),
)
"""Knobs that the recursion reads, beside the classes that `THEORY_GROUPS` names."""
THEORY_GROUPS = ("norm", "norm_type", "init", "activation")
"""Config groups whose classes the recursion builds."""

READ_ERRORS = (OSError, EOFError, ValueError, BadZipFile, zlib.error, RuntimeError)
"""Errors of reading a damaged file. RuntimeError: a zip that claims to be encrypted."""


@dataclass(frozen=True)
class Inputs:
    """A run's config, tokens x_BT and targets y_BT of step 0, and the rows of its embedding."""

    config: Config
    x_BT: Tokens
    y_BT: Tokens
    vocab: int

    def key(self, table: str) -> str:
        """Digest of all that a table's theory depends on: runs with one key have one theory."""
        config = self.config
        parts: list[Any] = [VERSION, self.vocab, config.depth, asdict(config.model)]
        parts += [*self.builds, config.init.embed_std]
        if table == "probes":
            parts += [table, config.train.accumulate, config.seed]
        digest = hashlib.blake2b(
            json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=8
        )
        digest.update(self.x_BT.tobytes() + self.y_BT.tobytes())
        return digest.hexdigest()

    @property
    def builds(self) -> list[dict[str, Any]]:
        """The classes of the groups in `THEORY_GROUPS`, with their arguments."""
        return [getattr(self.config, group).build for group in THEORY_GROUPS]


def read_inputs(run: Path) -> Inputs:
    """Read and check what a run on disk began with.

    Raises:
        NoTheory: a file is missing, damaged, or not what a run of this package leaves.
    """
    of_external = run / THEORY_FILE
    with _reading():
        file = of_external if of_external.exists() else run / CONFIG_FILE
        plain = yaml.load(file.read_text(), LOADER)
    config = _config(plain)
    vocab = config.model.vocab if config.model.vocab != "auto" else _vocab(run / RUN_FILE)
    x_BT, y_BT = _batch(run / BATCH_FILE, vocab)
    return Inputs(config, x_BT, y_BT, vocab)


@contextmanager
def _reading() -> Iterator[None]:
    """Turns what reading a missing or damaged file raises into NoTheory."""
    try:
        yield
    except FileNotFoundError as error:
        raise NoTheory(f"no {Path(error.filename).name}") from error
    except (*READ_ERRORS, yaml.YAMLError) as error:
        raise NoTheory(f"its files cannot be read ({type(error).__name__})") from error


def _config(plain: object) -> Config:
    """The config that a file holds, if the recursion can use it."""
    if not isinstance(plain, Mapping) or "model" not in plain:
        raise NoTheory("its model is not the GPT of this package")
    try:
        config = Config.from_plain(plain)
        for key in THEORY_KNOBS:
            _check(key, plain)
        rules.check_shape(config.model)
    except ConfigError as error:
        raise NoTheory(str(error)) from error
    for group in THEORY_GROUPS:
        build = getattr(config, group).build
        if not isinstance(build, Mapping) or not isinstance(build.get("_target_"), str):
            raise NoTheory(f"{group}.build={build}: needs a _target_")
    return config


def _check(key: str, plain: Mapping[str, Any]) -> None:
    """Check one key of a config file, which may have been edited or written by another version.

    Raises:
        ConfigError: no run can have this value.
        NoTheory: the key is missing.
    """
    knob = KNOBS[key]
    try:
        value = lookup(plain, key)
    except KeyError as error:
        raise NoTheory(f"its config lacks {key}") from error
    whole = type(knob.default) is int
    if (whole and type(value) is not int) or not knob.legal.test(value):
        wanted = f"a whole number, {knob.legal.text}" if whole else knob.legal.text
        raise ConfigError(key, value, f"must be {wanted}")


def _vocab(path: Path) -> int:
    """The number of symbols in a run's data."""
    with _reading():
        state = json.loads(path.read_text())
    data = state.get("data") if isinstance(state, Mapping) else None
    vocab = data.get("vocab") if isinstance(data, Mapping) else None
    if type(vocab) is not int or vocab < 1:
        raise NoTheory(f"{path.name} does not say how many symbols its data has")
    return vocab


def _batch(path: Path, vocab: int) -> tuple[Tokens, Tokens]:
    """Tokens and targets of step 0, [sequence, position]; a target below 0 does not count."""
    with _reading(), path.open("rb") as file:
        found = np.load(file)
        named = found if isinstance(found, Mapping) else {}  # a single array has no names
        arrays = [named[name] for name in ("x", "y") if name in named]
    if len(arrays) < 2 or any(a.ndim != 2 or a.dtype.kind not in "iu" for a in arrays):
        raise NoTheory(f"{path.name} does not hold tokens and targets")
    x_BT, y_BT = (array.astype(np.int64) for array in arrays)
    if x_BT.shape != y_BT.shape or not x_BT.size:
        raise NoTheory(f"{path.name} holds tokens of shape {x_BT.shape}, targets of {y_BT.shape}")
    if x_BT.min() < 0 or max(x_BT.max(), y_BT.max()) >= vocab:
        raise NoTheory(f"{path.name} holds tokens beyond the vocabulary of {vocab}")
    return x_BT, y_BT
