"""The theory of runs on disk, and of a whole sweep in the shape of its recorded rows."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import yaml

from stability.config.knobs import Config, ConfigError
from stability.results import atomic
from stability.results.index import LOADER
from stability.results.schema import BATCH_FILE, CONFIG_FILE, RUN_FILE
from stability.results.sweep_rows import SweepRows
from stability.theory import token_prediction
from stability.theory.covariance import NoTheory
from stability.theory.prediction import predict
from stability.theory.recursion import Tokens
from stability.theory.workers import process_pool

VERSION = 6
"""Part of every cache key: raise it when the numbers change."""

Progress = Callable[[Iterable[Any], int], Iterable[Any]]


@dataclass(frozen=True)
class Start:
    """What a run began with: its config, the batch of step 0, the rows of its embedding."""

    config: Config
    x_BT: Tokens
    y_BT: Tokens
    vocab: int

    def key(self, table: str) -> str:
        """Digest of all that a table's theory depends on: runs with one key have one theory."""
        groups = ("norm", "norm_type", "init")
        parts = [VERSION, self.vocab, self.config.depth, asdict(self.config.model)]
        parts += [getattr(self.config, g).build for g in groups] + [self.config.init.embed_std]
        if table == "probes":
            parts += [table, self.config.train.accumulate, self.config.seed]
        digest = hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8)
        digest.update(self.x_BT.tobytes() + self.y_BT.tobytes())
        return digest.hexdigest()


def start(run: Path) -> Start:
    """Read what a run on disk began with.

    Raises:
        NoTheory: a file is missing or is not what a run of ours leaves.
    """
    try:
        config = Config.from_plain(yaml.load((run / CONFIG_FILE).read_text(), LOADER))
        vocab = config.model.vocab
        if vocab == "auto":
            vocab = RunFile.read(run).data["vocab"]
        with (run / BATCH_FILE).open("rb") as file, np.load(file) as batch:
            x_BT, y_BT = batch["x"].astype(np.int64), batch["y"].astype(np.int64)
        return Start(config, x_BT, y_BT, vocab)
    except FileNotFoundError as error:
        raise NoTheory(f"no {Path(error.filename).name}") from error
    except (ConfigError, KeyError, TypeError) as error:
        raise NoTheory("its model is not the GPT of this package") from error
    except (OSError, EOFError, ValueError, BadZipFile, yaml.YAMLError) as error:
        raise NoTheory(f"its files cannot be read ({type(error).__name__})") from error


def overlay(run: Path, cache: Path | None = None, table: str = "layers") -> pd.DataFrame:
    """`predict` for a run on disk, from its config and the batch that it saw at step 0.

    Args:
        run: a run's folder.
        cache: a folder in which results are kept, keyed by what they depend on.
        table: ``layers``, or ``probes`` for what `token_prediction` predicts of them.

    Raises:
        NoTheory: the recursion does not cover the config, or a file of the run is missing.
    """
    began = start(run)
    make = token_prediction.predict if table == "probes" else predict
    try:
        file = cache / _file(began.key(table)) if cache else None
        if file and file.exists():
            with suppress(OSError, ValueError):  # a damaged one is made again
                return pd.read_parquet(file)
        with np.errstate(over="ignore", invalid="ignore"):  # a net that overflows is none of ours
            frame = make(began.config, began.x_BT, began.y_BT, began.vocab)
    except np.linalg.LinAlgError as error:  # a ValueError
        raise NoTheory("its variances exceed fp64") from error
    except (ConfigError, ValueError) as error:
        raise NoTheory(str(error)) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        # Its files were changed by hand: a width that is no number, a token beyond the vocabulary.
        why = f"{type(error).__name__}: {error}"
        raise NoTheory(f"its config and its batch make no net ({why})") from error
    if file:
        with suppress(OSError):  # another user's sweep may be read-only, and this is only a cache
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic.writing(file) as out:
                frame.to_parquet(out)
    return frame


def _file(key: str) -> str:
    return f"theory-{key}.parquet"


@dataclass(frozen=True)
class Overlay:
    """The theory of a sweep."""

    rows: SweepRows
    """Rows of step 0 as if they had been recorded: columns of `predict`, and those of ``runs``."""
    remarks: list[str]
    """For how many variants there is none, and why."""


def of_sweep(
    folders: Sequence[Path],
    runs: SweepRows,
    cache: Path,
    allow: Sequence[str] = (),
    progress: Progress = lambda results, _: results,
    table: str = "layers",
) -> Overlay:
    """The theory of every variant of a sweep, for the tokens of its first seed.

    Theory depends on a seed through its tokens alone, and little: that of every seed costs more
    than it shows. `stability.claims` gives the theory of the same seed.

    Args:
        folders: its run folders.
        runs: one row per run, as ``sweep_rows(sweep, "runs")`` gives them.
        cache: a folder in which results are kept.
        allow: modules whose classes a config may name, beside those of this package.
        progress: wraps the results that are waited for; called with their number.
        table: whose rows are wanted, as in `overlay`.
    """
    first = runs.with_frame(runs.frame.sort_values("seed")).variants()
    place = {folder.name: folder for folder in folders}
    keys: dict[str, str] = {}
    reasons: dict[str, str] = {}
    unique: dict[str, Path] = {}
    for run, name in zip(first["run"], first["folder"], strict=True):
        try:
            keys[run] = start(place[name]).key(table)
            unique[keys[run]] = place[name]
        except NoTheory as reason:
            reasons[run] = str(reason)
    known = dict(progress(_results(unique, cache, allow, table), len(unique)))
    rows = []
    for run, key in keys.items():
        if isinstance(result := known[key], NoTheory):
            reasons[run] = str(result)
            continue
        rows.append(result.assign(run=run, step=0, nonfinite=0))
    counted = Counter(reasons.values()).most_common()
    remarks = [f"no theory for {n} of {len(first)} variants: {reason}" for reason, n in counted]
    return Overlay(runs.with_frame(_joined(rows, runs.frame)), remarks)


def _results(
    unique: Mapping[str, Path], cache: Path, allow: Sequence[str], table: str
) -> Iterator[tuple[str, pd.DataFrame | NoTheory]]:
    """Key -> theory or why there is none; from processes that share the work, if there is much."""
    kept = [key for key in unique if (cache / _file(key)).exists()]
    yield from ((key, _try(unique[key], cache, table)) for key in kept)
    left = {key: folder for key, folder in unique.items() if key not in kept}
    if not left:
        return
    with process_pool(allow) as pool:
        pending = {pool.submit(_try, folder, cache, table): key for key, folder in left.items()}
        yield from ((pending[done], done.result()) for done in as_completed(pending))


def _try(folder: Path, cache: Path, table: str) -> pd.DataFrame | NoTheory:
    try:
        return overlay(folder, cache, table)
    except NoTheory as reason:
        return reason


def _joined(rows: list[pd.DataFrame], runs: pd.DataFrame) -> pd.DataFrame:
    """The rows with each run's own columns, so that figures take them for recorded ones."""
    theory = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame({"run": []})
    place = pd.Index(runs["run"]).get_indexer(theory["run"])
    own = [name for name in runs if name not in theory]
    return pd.concat([theory, runs[own].take(place).set_axis(theory.index)], axis=1)
