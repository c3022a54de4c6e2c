"""The infinite-width recursion: variance and gradient of every site at init, no free parameter.

`predict` follows the tokens of one batch through `stability.recursion` and returns rows with the
columns of the ``layers`` table, so that a figure can draw them through the measured points;
`overlay` does so for a run on disk. ``python -m stability.theory check PATH`` compares them with
every run below PATH and prints the errors as they are.

Measured at width 256 over 20 seeds (experiments/theory_check.md), depth 6 and 24: variances within
1.5%, gradient norms within 2.5%, median tokens within 2.2%, half or more of it the seeds' own
error. The median of expected squares lies 2% above that of realised ones at the head. Without norms
and with a large init, softmax saturates after some blocks: variances to 9 +- 9%, and gradients that
have come through there are not predicted (column ``saturated``).
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import yaml

from stability import atomic, kernels, table
from stability.config import ConfigError
from stability.covariance import NoTheory
from stability.index import Unreadable, sweeps
from stability.kernels import Matrix
from stability.recursion import Batch, Config, Net, Site, Tokens, groups
from stability.schema import BATCH_FILE, CONFIG_FILE, FINISHED, RUN_FILE

VERSION = 4
"""Part of every cache key: raise it when the numbers change."""

PLACE = ["layer", "sublayer"]
AIMS = (("variance", 100, 2), ("gradient", 50, 3), ("median gradient", 50, 3))
"""What is compared: its name, percent per unit of the mean square's relative error, the aim."""


def predict(config: Config, x_BT: Tokens, y_BT: Tokens, vocab: int) -> pd.DataFrame:
    """Variance and gradient at every site for one batch at init.

    Args:
        config: nested and resolved.
        x_BT: tokens of step 0.
        y_BT: targets, negative where ignored.
        vocab: rows of the embedding.

    Returns:
        Rows (layer, sublayer, site, kind) with numel, var, rms, first_share, token_rms_median as in
        the ``layers`` table, norm = rms sqrt(numel), the mean cosine between different tokens of a
        sequence, and ``saturated``: a gradient that is not to be trusted, as it has come through
        attention whose softmax picks single tokens (`Attention.saturates`).

    Raises:
        NoTheory: the config is outside what the recursion covers.
    """
    net = Net(config, vocab)
    joint = net.norm.args[0].joint
    found = groups(x_BT, y_BT, config["model"]["causal"], joint)
    runs = [net.run(batch, seed) for seed, batch in enumerate(found)]
    rows: list[dict[str, Any]] = []
    for sites in zip(*runs, strict=True):
        rows += _rows(sites, found, x_BT.size)
    return pd.DataFrame(rows)


def _rows(sites: tuple[Site, ...], batches: list[Batch], tokens: int) -> Iterator[dict[str, Any]]:
    first = np.concatenate([b.position == 0 for b in batches])
    layer, sublayer, name = sites[0].key
    for kind in ("act", "grad"):
        matrices = [site.x.C if kind == "act" else site.x.G for site in sites]
        square = np.concatenate([np.diagonal(M) for M in matrices])
        mean, numel = square.mean(), tokens * sites[0].width
        yield {
            "layer": layer,
            "sublayer": sublayer,
            "site": name,
            "kind": kind,
            "numel": numel,
            "var": mean,
            "rms": np.sqrt(mean),
            "norm": np.sqrt(mean * numel),
            "first_share": square[first].sum() / square.sum() if mean > 0 else np.nan,
            "token_rms_median": np.median(np.sqrt(square)),
            "saturated": kind == "grad" and sites[0].saturated,
            "cosine": np.mean([_cosine(M, b) for M, b in zip(matrices, batches, strict=True)]),
        }


def _cosine(C: Matrix, batch: Batch) -> float:
    """Mean correlation of different tokens of one sequence."""
    pairs = (batch.mask | batch.mask.T) & ~np.eye(len(C), dtype=bool)
    return float(kernels.correlation(C)[2][pairs].mean())


def overlay(run: Path, cache: Path | None = None) -> pd.DataFrame:
    """`predict` for a run on disk, from its config and the batch that it saw at step 0.

    Args:
        run: a run's folder.
        cache: a folder in which results are kept, keyed by what they depend on.

    Raises:
        NoTheory: the recursion does not cover the config, or a file of the run is missing.
    """
    try:
        config = yaml.safe_load((run / CONFIG_FILE).read_text())
        vocab = config["model"]["vocab"]
        if vocab == "auto":
            vocab = json.loads((run / RUN_FILE).read_text())["data"]["vocab"]
        with np.load(run / BATCH_FILE) as batch:
            x_BT, y_BT = batch["x"].astype(np.int64), batch["y"].astype(np.int64)
        file = cache / f"theory-{_key(config, x_BT, y_BT, vocab)}.parquet" if cache else None
        if file and file.exists():
            return pd.read_parquet(file)
        frame = predict(config, x_BT, y_BT, vocab)
    except (ConfigError, OSError, KeyError, ValueError) as error:
        raise NoTheory(f"{run.name}: {error}") from error
    if file:
        with suppress(OSError):  # another user's sweep may be read-only, and this is only a cache
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic.writing(file) as out:
                frame.to_parquet(out)
    return frame


def _key(config: Config, x_BT: Tokens, y_BT: Tokens, vocab: int) -> str:
    parts = [config[group]["build"] for group in ("norm", "norm_type", "init")]
    parts += [config["init"]["embed_std"], config["depth"], dict(config["model"]), vocab, VERSION]
    digest = hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8)
    digest.update(x_BT.tobytes() + y_BT.tobytes())
    return digest.hexdigest()


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
