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
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import yaml

from stability import quiet, table
from stability.covariance import NoTheory
from stability.index import Unreadable, sweeps
from stability.kernels import Matrix
from stability.overlay import overlay
from stability.schema import CONFIG_FILE, FINISHED, RUN_FILE

PLACE = ["layer", "sublayer"]
AIMS = (("variance", 100, 2), ("gradient", 50, 3), ("median gradient", 50, 3))
"""What is compared: its name, percent per unit of the mean square's relative error, the aim."""


def errors(path: Path) -> pd.DataFrame:
    """How far theory and measurement lie apart over the outputs of the sublayers, in percent.

    One row per config, its finished seeds averaged. Of the variance, of the gradient's norm over
    all tokens and of the median token's: the median over sublayers of the absolute error of the
    mean square (halved for a norm), and the median of its standard error over seeds, each seed
    having a theory of its own tokens. `off`: more than 2% (3% for gradients) and 2 errors.
    """
    cells: dict[str, list[Path]] = {}
    for folder in (f for folders in sweeps(path).values() for f in folders):
        if json.loads((folder / RUN_FILE).read_text())["status"] not in FINISHED:
            continue
        config = yaml.safe_load((folder / CONFIG_FILE).read_text())
        cells.setdefault(json.dumps({**config, "seed": None}, sort_keys=True), []).append(folder)
    rows = []
    # Matrices this small are slower with more threads than one; processes share the work instead.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        pending = {text: [pool.submit(_pair, f) for f in cell] for text, cell in cells.items()}
        for text, futures in pending.items():
            config = json.loads(text)
            axes = {name: config["choices"][name] for name in ("norm", "norm_type", "init")}
            axes |= {"depth": config["depth"], "seeds": len(futures)}
            rows.append(axes | _error([future.result() for future in futures]))
    return pd.DataFrame(rows)


def _error(pairs: list[tuple[Matrix, Matrix, bool]]) -> dict[str, Any]:
    measured, theory, saturated = (np.array(side) for side in zip(*pairs, strict=True))
    finite = np.isfinite(measured).all((1, 2))
    measured, theory = measured[finite], theory[finite]
    n = len(measured)
    if not n:
        return {"non-finite": len(finite)}
    error = theory.mean(0) / measured.mean(0) - 1
    left_out = (theory.sum(0) - theory) / (measured.sum(0) - measured) - 1
    spread = np.sqrt((n - 1) / n * ((left_out - left_out.mean(0)) ** 2).sum(0))
    row: dict[str, Any] = {"non-finite": len(finite) - len(measured)}
    for k, (name, percent, aim) in enumerate(AIMS):
        size, se = percent * np.median(np.abs(error[:, k])), percent * np.median(spread[:, k])
        beyond = not size <= aim + 2 * se
        row[name] = f"{_short(size)} +- {_short(se)}" + (" off" if beyond else "")
    return row | {"saturated": "yes" if saturated.any() else ""}


def _short(percent: float) -> str:
    return f"{percent:.1f}" if percent < 1000 else f"{percent:.0e}"


def _pair(folder: Path) -> tuple[Matrix, Matrix, bool]:
    """Mean squares, measured and predicted, [sublayer, (variance, gradient, median gradient)].

    And whether some gradient has come through saturated attention.
    """
    at_start = (pc.field("step") == 0) & (pc.field("site") == "resid_post")
    columns = [*PLACE, "kind", "rms", "token_rms_median"]
    measured = table.read(folder, "layers", columns, at_start).to_pandas()
    predicted = overlay(folder, folder.parent / "figures" / "theory")
    sides = []
    for frame in (measured, predicted[predicted["site"] == "resid_post"]):
        rows = frame[frame["layer"] >= 0].astype({"sublayer": str, "kind": str})
        act, grad = (rows[rows["kind"] == kind].set_index(PLACE) for kind in ("act", "grad"))
        act = act.sort_index()
        grad = grad.loc[act.index]
        sides.append(np.stack([act["rms"], grad["rms"], grad["token_rms_median"]], 1) ** 2)
    return sides[0], sides[1], bool(predicted["saturated"].any())


@quiet.when_unread
def main(argv: Sequence[str] | None = None) -> int:
    """The command ``python -m stability.theory check PATH``."""
    parser = argparse.ArgumentParser("python -m stability.theory")
    commands = parser.add_subparsers(required=True)
    check = commands.add_parser("check", help="theory against every run below PATH, at step 0")
    check.add_argument("path", type=Path, nargs="?", default=Path("outputs"))
    args = parser.parse_args(argv)
    try:
        print(errors(args.path).to_string(index=False, na_rep=""))
    except (Unreadable, NoTheory) as error:
        print(f"stability.theory: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
