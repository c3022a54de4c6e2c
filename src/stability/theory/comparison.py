"""How far theory and measurement lie apart at init, for every config below a path."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from stability.parts.activation_kernels import Matrix
from stability.results import parquet
from stability.results.atomic import Unreadable
from stability.results.frames import varying
from stability.results.index import index, sweeps
from stability.results.run_file import RunFile
from stability.results.schema import FIGURES_FOLDER, FINISHED, THEORY_FOLDER
from stability.theory.limits import NoTheory
from stability.theory.run_theory import theory_of_run
from stability.theory.workers import Track, process_pool

IGNORED = ("record.", "train.", "sweep", "seed")
"""Prefixes of keys that may differ between configs of one theory."""
PLACE = ["layer", "sublayer"]


class Pair(NamedTuple):
    """One run: mean squares [sublayer, quantity], quantities as in `COMPARED`."""

    measured: Matrix
    predicted: Matrix
    saturated: bool
    """Whether some gradient has come through attention whose softmax saturates."""


class Compared(NamedTuple):
    """A quantity that is compared."""

    name: str
    percent: int
    """Percent of error per unit of the mean square's relative error: 100, and 50 for a norm."""
    tolerance: int
    """Percent that the error may exceed by two standard errors before the theory is called off."""


COMPARED = (
    Compared("variance", percent=100, tolerance=2),
    Compared("gradient", percent=50, tolerance=3),
    Compared("median gradient", percent=50, tolerance=3),
)
GRADIENTS = ("gradient", "median gradient")


class Comparison(NamedTuple):
    """Theory against measurement below a path."""

    table: pd.DataFrame
    """One row per config; ``remark`` says which of its runs were left out, and why."""
    damaged: dict[str, str]
    """Runs, or sweeps, that cannot be read -> the reason."""


def compare(path: Path, track: Track = lambda results, _: results) -> Comparison:
    """How far theory and measurement lie apart over the outputs of the sublayers, in percent.

    One row per config, its finished seeds averaged, with the keys in which the configs differ. For
    the variance, the gradient's norm over all tokens and the median token's: the median over
    sublayers of the absolute error of the mean square (halved for a norm), and the median of its
    jackknife standard error over seeds; the theory of a seed uses its tokens. ``off``: the error
    exceeds the tolerance by more than 2 standard errors; one seed has none, and no judgement.

    Raises:
        Unreadable: nothing there, or no run of a sweep can be read.
    """
    found, damaged = _indices(path)
    configs = _configs(found)
    with process_pool() as pool:
        pending = [
            (key, pool.submit(_pair, folder))
            for key, config in configs.items()
            for folder in config.folders.values()
        ]
        pairs: dict[str, list[Pair | NoTheory]] = {key: [] for key in configs}
        for key, future in track(pending, len(pending)):
            pairs[key].append(future.result())
    table = pd.DataFrame([configs[key].row | _errors(those) for key, those in pairs.items()])
    if "remark" in table:
        table = table[[name for name in table if name != "remark"] + ["remark"]]
    return Comparison(table, damaged)


def _indices(path: Path) -> tuple[list[pd.DataFrame], dict[str, str]]:
    """The runs of each sweep, their folders in a column ``path``; which cannot be read, and why."""
    found, damaged = [], {}
    for sweep, folders in sweeps(path).items():
        try:
            runs, left_out = index(sweep, folders)
        except Unreadable as error:
            damaged[sweep.name] = str(error)
            continue
        damaged |= left_out
        found.append(runs.assign(path=runs["folder"].map({f.name: f for f in folders})))
    if not found:
        raise Unreadable(next(iter(damaged.values())))
    return found, damaged


class SeedRuns(NamedTuple):
    """The finished runs of one config, which differ in their seed alone."""

    row: dict[str, Any]
    """What the table says of the config."""
    folders: dict[str, Path]
    """By the run's hash, so that a copy of a run is not one more seed."""


def _configs(found: list[pd.DataFrame]) -> dict[str, SeedRuns]:
    runs = pd.concat(found, ignore_index=True)
    axes = [axis for axis in varying(runs) if not axis.startswith(IGNORED)]
    axes = [*dict.fromkeys(["norm", "norm_type", "init", "depth", *axes])]
    configs: dict[str, SeedRuns] = {}
    for _, run in runs[runs["status"].isin(FINISHED)].iterrows():
        row = {axis.rpartition(".")[2]: run[axis] for axis in axes}
        config = configs.setdefault(_without_seed(run["path"], run["run"]), SeedRuns(row, {}))
        config.folders[run["run"]] = run["path"]
    return configs


def _without_seed(folder: Path, run: str) -> str:
    """The run's identity without its seed, as JSON: equal for runs that differ only in the seed."""
    identity = RunFile.read(folder).identity or {"run": run}  # an external model has none
    return json.dumps({**identity, "seed": None}, sort_keys=True)


def _errors(pairs: Sequence[Pair | NoTheory]) -> dict[str, Any]:
    good = [pair for pair in pairs if not isinstance(pair, NoTheory)]
    row: dict[str, Any] = {"seeds": len(pairs)} | (_error(good) if good else {})
    reasons = Counter(str(pair) for pair in pairs if isinstance(pair, NoTheory))
    said = [f"{n} of {len(pairs)} without theory: {reason}" for reason, n in reasons.items()]
    return row | ({"remark": "; ".join(said)} if said else {})


def _error(pairs: Sequence[Pair]) -> dict[str, Any]:
    measured, theory, saturated = (np.array(side) for side in zip(*pairs, strict=True))
    finite = np.isfinite(measured).all((1, 2))
    measured, theory = measured[finite], theory[finite]
    n = len(measured)
    if not n:
        return {"non-finite": len(finite)}
    with np.errstate(invalid="ignore", divide="ignore"):
        # One seed leaves no others to average, and a measured 0 has no relative error: both NaN.
        error = theory.mean(0) / measured.mean(0) - 1
        left_out = (theory.sum(0) - theory) / (measured.sum(0) - measured) - 1
    spread = np.sqrt((n - 1) / n * ((left_out - left_out.mean(0)) ** 2).sum(0))
    row: dict[str, Any] = {"non-finite": len(finite) - len(measured)}
    for k, quantity in enumerate(COMPARED):
        size, se = np.median(np.abs(error[:, k])), np.median(spread[:, k])
        row[quantity.name] = _judged(quantity, quantity.percent * size, quantity.percent * se, n)
    if saturated.any():
        row |= dict.fromkeys(GRADIENTS, "saturated")
    return row


def _judged(quantity: Compared, size: float, standard_error: float, seeds: int) -> str:
    """An error as the table shows it: ``1.2 +- 0.3``, with ``off`` where it is too large."""
    if not np.isfinite(size):
        return ""
    known = f"{_short(size)} +- {_short(standard_error)}" if seeds > 1 else _short(size)
    return known + (" off" if size > quantity.tolerance + 2 * standard_error else "")


def _short(percent: float) -> str:
    return f"{percent:.1f}" if percent < 1000 else f"{percent:.0e}"


def _pair(folder: Path) -> Pair | NoTheory:
    """A run's mean squares, measured and predicted, or why there is no theory."""
    try:
        predicted = theory_of_run(folder, folder.parent / FIGURES_FOLDER / THEORY_FOLDER)
    except NoTheory as reason:
        return reason
    at_start = (pc.field("step") == 0) & (pc.field("site") == "resid_post")
    columns = [*PLACE, "kind", "rms", "token_rms_median"]
    measured = parquet.read(folder, "layers", columns, at_start).to_pandas()
    sides = [_squares(f) for f in (measured, predicted[predicted["site"] == "resid_post"])]
    if len(sides[0]) != len(sides[1]):
        return NoTheory("act and grad at resid_post are not both recorded at step 0")
    return Pair(sides[0], sides[1], bool(predicted["saturated"].any()))


def _squares(frame: pd.DataFrame) -> Matrix:
    rows = frame[frame["layer"] >= 0].astype({"sublayer": str, "kind": str}).sort_values(PLACE)
    act, grad = (rows[rows["kind"] == kind].set_index(PLACE) for kind in ("act", "grad"))
    both = act[["rms"]].join(grad[["rms", "token_rms_median"]], how="inner", rsuffix="_grad")
    squares: Matrix = both.to_numpy(float) ** 2
    return squares
