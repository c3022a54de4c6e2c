"""The theory of runs on disk, and of a whole sweep in the shape of its recorded rows."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from stability.results import atomic
from stability.results.sweep_rows import SweepRows
from stability.theory import token_prediction
from stability.theory.inputs import Inputs, read_inputs
from stability.theory.limits import NoTheory
from stability.theory.prediction import predict
from stability.theory.workers import Track, process_pool


def theory_of_run(run: Path, cache: Path | None = None, table: str = "layers") -> pd.DataFrame:
    """`predict` for a run on disk, from its config and the batch that it saw at step 0.

    Args:
        run: a run's folder.
        cache: a folder in which results are kept, keyed by what they depend on.
        table: ``layers``, or ``probes`` for what `token_prediction` predicts of them.

    Raises:
        NoTheory: the recursion does not cover the config, or a file of the run is missing.
    """
    inputs = read_inputs(run)
    file = cache / _file(inputs.key(table)) if cache else None
    if file and file.exists():
        with suppress(OSError, ValueError):  # a damaged one is made again
            return pd.read_parquet(file)
    frame = _predicted(inputs, table)
    if file:
        with suppress(OSError):  # the folder may be read-only, and this is only a cache
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic.writing(file) as out:
                frame.to_parquet(out)
    return frame


def _predicted(inputs: Inputs, table: str) -> pd.DataFrame:
    make = token_prediction.predict if table == "probes" else predict
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # numbers may exceed fp64: see below
            frame = make(inputs.config, inputs.x_BT, inputs.y_BT, inputs.vocab)
    except OverflowError as error:
        raise NoTheory("its variances exceed fp64") from error
    if table == "layers" and (inputs.y_BT < 0).all():  # the loss of an external model is not known
        frame = frame[frame["kind"] == "act"].reset_index(drop=True)
    return frame


def _file(key: str) -> str:
    return f"theory-{key}.parquet"


@dataclass(frozen=True)
class SweepTheory:
    """The theory of a sweep."""

    rows: SweepRows
    """Rows of step 0 as if they had been recorded: columns of `predict`, and those of ``runs``."""
    remarks: list[str]
    """For how many variants there is none, and why."""


def theory_of_sweep(
    folders: Sequence[Path],
    runs: SweepRows,
    cache: Path,
    allow: Sequence[str] = (),
    track: Track = lambda results, _: results,
    table: str = "layers",
) -> SweepTheory:
    """The theory of every variant of a sweep, for the tokens of its first seed.

    The theory depends on the seed only through the tokens, and weakly, so one seed is computed.
    `stability.claims` gives the theory of the same seed.

    Args:
        folders: its run folders.
        runs: one row per run, as ``sweep_rows(sweep, "runs")`` gives them.
        cache: a folder in which results are kept.
        allow: modules whose classes a config may name, beside those of this package.
        track: wraps the results that are waited for; called with their number.
        table: whose rows are wanted, as in `theory_of_run`.
    """
    first = runs.with_frame(runs.frame.sort_values("seed")).variants()
    place = {folder.name: folder for folder in folders}
    keys: dict[str, str] = {}
    reasons: dict[str, str] = {}
    unique: dict[str, Path] = {}
    for run, name in zip(first["run"], first["folder"], strict=True):
        try:
            keys[run] = read_inputs(place[name]).key(table)
            unique[keys[run]] = place[name]
        except NoTheory as reason:
            reasons[run] = str(reason)
    known = dict(track(_results(unique, cache, allow, table), len(unique)))
    rows = []
    for run, key in keys.items():
        if isinstance(result := known[key], NoTheory):
            reasons[run] = str(result)
            continue
        rows.append(result.assign(run=run, step=0, nonfinite=0))
    counted = Counter(reasons.values()).most_common()
    remarks = [f"no theory for {n} of {len(first)} variants: {reason}" for reason, n in counted]
    return SweepTheory(runs.with_frame(_joined(rows, runs.frame)), remarks)


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
        return theory_of_run(folder, cache, table)
    except NoTheory as reason:
        return reason


def _joined(rows: list[pd.DataFrame], runs: pd.DataFrame) -> pd.DataFrame:
    """The rows with each run's own columns, so that figures take them for recorded ones."""
    theory = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame({"run": []})
    place = pd.Index(runs["run"]).get_indexer(theory["run"])
    own = [name for name in runs if name not in theory]
    return pd.concat([theory, runs[own].take(place).set_axis(theory.index)], axis=1)
