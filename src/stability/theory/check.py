"""Theory against measurement: ``python -m stability.theory check PATH``.

The theory is `prediction.predict`, and `overlay.overlay` for a run on disk. This command compares
it with every run below PATH at init and prints the errors as they are.

Measured at width 256 over 20 seeds (experiments/theory_check.md), depth 6, 24 and 96: variances
within 1.5%, gradient norms within 2.5%, median tokens within 2.2%, half or more of it the seeds'
own error. The median of expected squares lies 2% above that of realised ones at the head. At depth
96 Post-LN's gradient with a large init has a distribution too broad for 20 seeds (33 +- 30%).
Without norms and with a large init, softmax saturates after some blocks: variances to 9 +- 9%, and
gradients that have come through there are not predicted (``saturated``).
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import Progress

from stability import shell
from stability.results import parquet
from stability.results.atomic import Unreadable
from stability.results.frames import varying
from stability.results.index import index, sweeps
from stability.results.run_file import RunFile
from stability.results.schema import FINISHED
from stability.theory.covariance import NoTheory
from stability.theory.kernels import Matrix
from stability.theory.overlay import overlay
from stability.theory.workers import crew

LEGEND = """\
Percent, median over the outputs of the sublayers, +- a standard error over seeds.
off: beyond 2% (gradients 3%) and two errors. saturated: softmax picks single tokens, and what comes
through there is not predicted. See experiments/theory_check.md."""
ASIDE = ("record.", "train.", "sweep")
"""What may differ between configs of one theory."""
PLACE = ["layer", "sublayer"]
Pair = tuple[Matrix, Matrix, bool]
"""Measured and predicted mean squares of one run, and whether its softmax saturates."""

AIMS = (("variance", 100, 2), ("gradient", 50, 3), ("median gradient", 50, 3))
"""What is compared: its name, percent per unit of the mean square's relative error, the aim."""


Track = Callable[[Iterable[Any], int], Iterable[Any]]
"""Wraps what is waited for; called with its number too."""


def errors(path: Path, track: Track = lambda results, _: results) -> pd.DataFrame:
    """How far theory and measurement lie apart over the outputs of the sublayers, in percent.

    One row per config, its finished seeds averaged, with the keys in which the configs differ. Of
    the variance, of the gradient's norm over all tokens and of the median token's: the median over
    sublayers of the absolute error of the mean square (halved for a norm), and the median of its
    standard error over seeds, each seed having a theory of its own tokens. `off`: more than 2% (3%
    for gradients) and 2 errors; of one seed there is no error, and no judgement. ``remark`` says
    which runs were left out, and why; ``attrs["damaged"]`` names those that cannot be read at all.

    Raises:
        Unreadable: nothing there, or no run of a sweep can be read.
    """
    found, damaged = _indices(path)
    runs = pd.concat([frame for frame, _ in found], ignore_index=True)
    axes = [a for a in varying(runs) if not a.startswith((*ASIDE, "seed"))]
    axes = list(dict.fromkeys(["norm", "norm_type", "init", "depth", *axes]))
    cells: dict[str, tuple[dict[str, Any], dict[str, Path]]] = {}
    for frame, place in found:
        for _, run in frame[frame["status"].isin(FINISHED)].iterrows():
            row = {axis.rpartition(".")[2]: run[axis] for axis in axes}
            folder = place[run["folder"]]
            # By the run's hash, so that a copy of a run is not one more seed.
            cells.setdefault(_cell(folder, run["run"]), (row, {}))[1][run["run"]] = folder
    with crew() as pool:
        pending = [(c, pool.submit(_pair, f)) for c, (_, fs) in cells.items() for f in fs.values()]
        pairs: dict[str, list[Pair | NoTheory]] = {cell: [] for cell in cells}
        for cell, future in track(pending, len(pending)):
            pairs[cell].append(future.result())
    rows = pd.DataFrame([cells[cell][0] | _errors(those) for cell, those in pairs.items()])
    if "remark" in rows:
        rows = rows[[name for name in rows if name != "remark"] + ["remark"]]
    rows.attrs["damaged"] = damaged
    return rows


def _indices(path: Path) -> tuple[list[tuple[pd.DataFrame, dict[str, Path]]], dict[str, str]]:
    """The runs of each sweep and their folders by name; which cannot be read, and why."""
    found, damaged = [], {}
    for sweep, folders in sweeps(path).items():
        try:
            frame = index(sweep, folders)
        except Unreadable as error:
            damaged[sweep.name] = str(error)
            continue
        damaged |= frame.attrs["damaged"]
        found.append((frame, {folder.name: folder for folder in folders}))
    if not found:
        raise Unreadable(next(iter(damaged.values())))
    return found, damaged


def _cell(folder: Path, run: str) -> str:
    """What a run shares with those that differ in their seed alone."""
    what = RunFile.read(folder).identity or {"run": run}  # a recorded external loop has none
    return json.dumps({**what, "seed": None}, sort_keys=True)


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
        # Of one seed nothing is left, and no error known; of a measured 0 there is none.
        error = theory.mean(0) / measured.mean(0) - 1
        left_out = (theory.sum(0) - theory) / (measured.sum(0) - measured) - 1
    spread = np.sqrt((n - 1) / n * ((left_out - left_out.mean(0)) ** 2).sum(0))
    row: dict[str, Any] = {"non-finite": len(finite) - len(measured)}
    for k, (name, percent, aim) in enumerate(AIMS):
        size, se = percent * np.median(np.abs(error[:, k])), percent * np.median(spread[:, k])
        known = f"{_short(size)} +- {_short(se)}" if n > 1 else _short(size)
        row[name] = known + (" off" if size > aim + 2 * se else "") if np.isfinite(size) else ""
    if saturated.any():
        row |= dict.fromkeys((name for name, *_ in AIMS[1:]), "saturated")
    return row


def _short(percent: float) -> str:
    return f"{percent:.1f}" if percent < 1000 else f"{percent:.0e}"


def _pair(folder: Path) -> Pair | NoTheory:
    """Mean squares, measured and predicted, [sublayer, (variance, gradient, median gradient)].

    And whether some gradient has come through saturated attention; or why there is no theory.
    """
    try:
        predicted = overlay(folder, folder.parent / "figures" / "theory")
    except NoTheory as reason:
        return reason
    at_start = (pc.field("step") == 0) & (pc.field("site") == "resid_post")
    columns = [*PLACE, "kind", "rms", "token_rms_median"]
    measured = parquet.read(folder, "layers", columns, at_start).to_pandas()
    sides = [_squares(f) for f in (measured, predicted[predicted["site"] == "resid_post"])]
    if len(sides[0]) != len(sides[1]):
        return NoTheory("act and grad at resid_post are not both recorded at step 0")
    return sides[0], sides[1], bool(predicted["saturated"].any())


def _squares(frame: pd.DataFrame) -> Matrix:
    rows = frame[frame["layer"] >= 0].astype({"sublayer": str, "kind": str}).sort_values(PLACE)
    act, grad = (rows[rows["kind"] == kind].set_index(PLACE) for kind in ("act", "grad"))
    both = act[["rms"]].join(grad[["rms", "token_rms_median"]], how="inner", rsuffix="_grad")
    squares: Matrix = both.to_numpy(float) ** 2
    return squares


@shell.quiet_exit
def main(argv: Sequence[str] | None = None) -> int:
    """The command ``python -m stability.theory check PATH``."""
    parser = argparse.ArgumentParser("python -m stability.theory")
    commands = parser.add_subparsers(required=True)
    check = commands.add_parser("check", help="theory against every run below PATH, at step 0")
    check.add_argument("path", type=Path, nargs="?", default=Path("outputs"))
    args = parser.parse_args(argv)
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            track = partial(progress.track, description="theory")
            found = errors(args.path, lambda results, count: track(results, total=count))
        for name, why in found.attrs["damaged"].items():
            print(f"stability.theory: left out {name}: {why}", file=sys.stderr)
        print(found.to_string(index=False, na_rep="") if len(found) else "no finished run")
        print(f"\n{LEGEND}")
    except Unreadable as error:
        print(f"stability.theory: {error}", file=sys.stderr)
        return 2
    return 0
