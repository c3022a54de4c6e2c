"""Theory against measurement: ``python -m stability.theory check PATH``.

The theory is `stability.prediction.predict`, and `stability.overlay.overlay` for a run on disk;
this command compares it with every run below PATH at init and prints the errors as they are.

Measured at width 256 over 20 seeds (experiments/theory_check.md), depth 6, 24 and 96: variances
within 1.5%, gradient norms within 2.5%, median tokens within 2.2%, half or more of it the seeds'
own error. The median of expected squares lies 2% above that of realised ones at the head. At depth
96 Post-LN's gradient with a large init has a distribution too broad for 20 seeds (33 +- 30%).
Without norms and with a large init, softmax saturates after some blocks: variances to 9 +- 9%, and
gradients that have come through there are not predicted (column ``saturated``).
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import yaml
from rich.console import Console
from rich.progress import Progress

from stability import quiet, table
from stability.covariance import NoTheory
from stability.index import LOADER, Unreadable, index, sweeps
from stability.kernels import Matrix
from stability.overlay import overlay
from stability.schema import CONFIG_FILE, FINISHED

PLACE = ["layer", "sublayer"]
Pair = tuple[Matrix, Matrix, bool]
"""Measured and predicted mean squares of one run, and whether its softmax saturates."""

AIMS = (("variance", 100, 2), ("gradient", 50, 3), ("median gradient", 50, 3))
"""What is compared: its name, percent per unit of the mean square's relative error, the aim."""


Track = Callable[[Iterable[Any], int], Iterable[Any]]
"""Wraps what is waited for; called with its number too."""


def errors(path: Path, track: Track = lambda results, _: results) -> pd.DataFrame:
    """How far theory and measurement lie apart over the outputs of the sublayers, in percent.

    One row per config, its finished seeds averaged. Of the variance, of the gradient's norm over
    all tokens and of the median token's: the median over sublayers of the absolute error of the
    mean square (halved for a norm), and the median of its standard error over seeds, each seed
    having a theory of its own tokens. `off`: more than 2% (3% for gradients) and 2 errors.
    ``remark`` says why a config has no errors. ``attrs["damaged"]`` names the runs that cannot be
    read, and why.

    Raises:
        Unreadable: nothing there, or no run of a sweep can be read.
    """
    cells: dict[str, list[Path]] = {}
    damaged: dict[str, str] = {}
    for sweep, folders in sweeps(path).items():
        runs = index(sweep, folders)
        damaged |= runs.attrs["damaged"]
        finished = set(runs.loc[runs["status"].isin(FINISHED), "folder"])
        for folder in (f for f in folders if f.name in finished):
            config = yaml.load((folder / CONFIG_FILE).read_text(), LOADER)
            cell = json.dumps({**config, "seed": None}, sort_keys=True)
            cells.setdefault(cell, []).append(folder)
    # Matrices this small are slower with more threads than one; processes share the work instead.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        pending = [(text, pool.submit(_pair, f)) for text, cell in cells.items() for f in cell]
        pairs: dict[str, list[Pair | NoTheory]] = {text: [] for text in cells}
        for text, future in track(pending, len(pending)):
            pairs[text].append(future.result())
    rows = pd.DataFrame([_row(json.loads(text), found) for text, found in pairs.items()])
    if "remark" in rows:
        rows = rows[[name for name in rows if name != "remark"] + ["remark"]]
    rows.attrs["damaged"] = damaged
    return rows


def _row(config: Mapping[str, Any], pairs: Sequence[Pair | NoTheory]) -> dict[str, Any]:
    row = {name: config.get("choices", {}).get(name) for name in ("norm", "norm_type", "init")}
    row |= {"depth": config["depth"], "seeds": len(pairs)}
    reasons = [str(pair) for pair in pairs if isinstance(pair, NoTheory)]
    if reasons:
        return row | {"remark": f"no theory: {reasons[0]}"}
    return row | _error([pair for pair in pairs if not isinstance(pair, NoTheory)])


def _error(pairs: Sequence[Pair]) -> dict[str, Any]:
    measured, theory, saturated = (np.array(side) for side in zip(*pairs, strict=True))
    finite = np.isfinite(measured).all((1, 2))
    measured, theory = measured[finite], theory[finite]
    n = len(measured)
    if not n:
        return {"non-finite": len(finite)}
    error = theory.mean(0) / measured.mean(0) - 1
    with np.errstate(invalid="ignore"):  # of one seed nothing is left, and no error known
        left_out = (theory.sum(0) - theory) / (measured.sum(0) - measured) - 1
    spread = np.sqrt((n - 1) / n * ((left_out - left_out.mean(0)) ** 2).sum(0))
    row: dict[str, Any] = {"non-finite": len(finite) - len(measured)}
    for k, (name, percent, aim) in enumerate(AIMS):
        size, se = percent * np.median(np.abs(error[:, k])), percent * np.median(spread[:, k])
        known = f"{_short(size)} +- {_short(se)}" if n > 1 else _short(size)
        row[name] = known + (" off" if size > aim + 2 * se else "")
    return row | {"saturated": "yes" if saturated.any() else ""}


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
    measured = table.read(folder, "layers", columns, at_start).to_pandas()
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


@quiet.when_unread
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
    except Unreadable as error:
        print(f"stability.theory: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
