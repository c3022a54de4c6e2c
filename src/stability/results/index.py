"""Run folders on disk -> one row per run, cached beside them in ``runs.parquet``.

A row holds what ``run.json`` says, the flattened config, and how the run grew. Rows are made again
only for runs that have changed since, so that a sweep of a thousand runs opens at once.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stability.config.suggestions import meant
from stability.results import atomic, integrity
from stability.results import parquet as tables
from stability.results.atomic import Unreadable
from stability.results.run_row import KNOWN, Row, run_row
from stability.results.schema import FINISHED, RUN_FILE, RUNS_FILE, TABLES
from stability.results.score_resolution import score_eps
from stability.results.stream import block_outputs, l2

GROWTH = ("variance_growth", "grad_ratio", "grad_ratio_median", "grad_subnormal", "score_eps")
"""Columns that are made of the layers table; see `index`."""

STAMPS = b"stability.stamps"
"""Metadata key of ``runs.parquet``: folder of each finished run -> what its row was made from."""


class RunIndex(NamedTuple):
    """The runs of a sweep."""

    runs: pd.DataFrame
    """One row per run that can be read."""
    damaged: dict[str, str]
    """Folder of each run that cannot be read -> the reason."""


def _meant(path: Path) -> str:
    """The folder beside a missing one that was probably meant."""
    beside = {str(p) for p in path.parent.glob("*") if p.is_dir()}
    hint = meant(str(path), sorted(beside))
    return f"; {hint}" if hint else ""


def sweeps(path: str | Path) -> dict[Path, list[Path]]:
    """Sweep folder -> its run folders, for all sweeps at or below a path.

    A path that is itself a run folder is a sweep of one.

    Raises:
        Unreadable: the path is missing, no folder, or holds no run.
    """
    path = Path(path)
    try:
        reason = "" if path.is_dir() else "is not a folder" if path.exists() else "does not exist"
    except (OSError, ValueError) as error:  # a name that the system does not take
        reason = f"cannot be a folder ({getattr(error, 'strerror', None) or error})"
    if reason:
        hint = _meant(path) if reason == "does not exist" else ""
        raise Unreadable(f"{path}: {reason}{hint}")
    found: dict[Path, list[Path]] = {}
    for folder in _run_folders(path):
        found.setdefault(path if folder == path else folder.parent, []).append(folder)
    if not found:
        raise Unreadable(f"{path}: holds no runs (a run is a folder with a {RUN_FILE})")
    return found


def _run_folders(path: Path) -> Iterator[Path]:
    """Run folders at or below a path; does not look inside them, nor follow links to folders."""
    for folder, below, names in os.walk(path):
        if RUN_FILE in names:
            below.clear()
            yield Path(folder)
        below[:] = sorted(name for name in below if not name.startswith("."))


def index(sweep: Path, folders: Sequence[Path] | None = None) -> RunIndex:
    """One row per run of a sweep: what `run.json` says, the config, and how it grew.

    ``variance_growth`` = Var(x_L) / Var(x_1) and ``grad_ratio`` = |delta_1| / |delta_L| over the
    outputs x_1 .. x_L of the blocks, at ``last_step``, the last recorded one; ``grad_ratio_median``
    is that of the median token. ``grad_subnormal`` is the largest share of subnormal entries in
    the gradient of a block's output at any recorded step, ``score_eps`` the largest |score| times
    eps, see `results.score_resolution`.

    Args:
        sweep: a folder of run folders.
        folders: those run folders, where they are known already.

    Raises:
        Unreadable: no run of the sweep can be read.
    """
    if folders is None:
        folders = sorted(p.parent for p in sweep.glob(f"*/{RUN_FILE}"))
    cache = sweep / RUNS_FILE if sweep not in folders else None
    stamps = {f.name: _stamp(f) for f in folders}
    old = _cached(cache) if cache else {}
    rows = {n: row for n, (row, stamp) in old.items() if stamp == stamps.get(n)}
    made, damaged = _made([f for f in folders if f.name not in rows])
    rows |= made
    if not rows:
        raise Unreadable(next(iter(damaged.values()), f"{sweep}: holds no runs"))
    table = _as_table([rows[name] for name in sorted(rows)])
    if cache and (made or set(old) - set(rows)):
        finished = {n: stamps[n] for n, row in rows.items() if row["status"] in FINISHED}
        with suppress(OSError):  # the folder may be read-only, and this is only a cache
            _write(table, finished, cache)
    return RunIndex(table.to_pandas(), damaged)


def _made(folders: Sequence[Path]) -> tuple[dict[str, Row], dict[str, str]]:
    """Rows by folder, made from the runs' files; the reasons where they cannot be read."""
    made: dict[str, Row] = {}
    damaged: dict[str, str] = {}
    for folder in folders:
        try:
            made[folder.name] = run_row(folder)
        except Unreadable as error:
            damaged[folder.name] = str(error)
    if made:
        _add_growth([f for f in folders if f.name in made], list(made.values()))
    return made, damaged


def _stamp(folder: Path) -> str:
    """Changes when a finished run is written to: time and size of its state and tables."""
    seen = []
    for path in (folder / RUN_FILE, *(folder / f"{name}.parquet" for name in TABLES)):
        with suppress(OSError):
            found = path.stat()
            seen.append(f"{found.st_mtime_ns}:{found.st_size}")
    return " ".join(seen)


def _cached(cache: Path) -> dict[str, tuple[Row, str]]:
    """Folder -> (row, stamp) of the finished runs in the cache; nothing where there is none."""
    try:
        table = pq.read_table(cache)
        stamps = json.loads((table.schema.metadata or {}).get(STAMPS, b"{}"))
    except integrity.DAMAGE:
        return {}
    if not {"folder", *KNOWN, *GROWTH} <= set(table.column_names):  # of a version with fewer knobs
        return {}
    return {
        row["folder"]: (row, stamps[row["folder"]])
        for row in table.to_pylist()
        if row["folder"] in stamps
    }


def _add_growth(folders: list[Path], rows: list[Row]) -> None:
    """Fill in how variance and gradient change from the first block's output to the last one's."""
    for row in rows:
        row |= dict.fromkeys(GROWTH)
    last = {row["run"]: row["last_step"] for row in rows}
    keys = ["run", "step", "layer", "sublayer", "site", "kind", "numel", "nonfinite"]
    at_end = pc.field("step").isin(sorted({*last.values()} - {None}))
    wanted = (pc.field("site") == "resid_post") & (at_end | (pc.field("kind") == "grad"))
    wanted |= (pc.field("site") == "scores") & (pc.field("kind") == "act")
    stats = ["var", "rms", "absmax", "token_rms_median", "subnormal"]

    def scan() -> pd.DataFrame:
        paths = [p for folder in folders for p in tables.files(folder, "layers")]
        return tables.scan(paths, "layers", keys + stats, wanted).to_pandas()

    rows_found = tables.settled(scan)
    scores = rows_found[rows_found["site"] == "scores"]
    largest = scores["absmax"].groupby(scores["run"].astype(str)).max()
    found = block_outputs(rows_found)
    grads = found[found["kind"] == "grad"]
    shares = grads["subnormal"] / grads["numel"].where(grads["numel"] > 0)
    worst = shares.groupby(grads["run"].astype(str)).max()
    found = found[(found["l"] > 0) & (found["step"] == found["run"].astype(str).map(last))]
    found = found.sort_values("l").assign(size=l2(found))
    of_run = dict(iter(found.groupby("run", observed=True)))
    for row in rows:
        if row["run"] in worst:
            row["grad_subnormal"] = float(worst[row["run"]])
        if row["run"] in largest:
            row["score_eps"] = float(score_eps(largest[[row["run"]]], row["dtype"]).iloc[0])
        if row["run"] in of_run:
            run = of_run[row["run"]]
            act, grad = run[run["kind"] == "act"], run[run["kind"] == "grad"]
            row["variance_growth"] = _ratio(act["var"], -1, 0)
            row["grad_ratio"] = _ratio(grad["size"], 0, -1)
            row["grad_ratio_median"] = _ratio(grad["token_rms_median"], 0, -1)


def _ratio(values: pd.Series, numerator: int, denominator: int) -> float | None:
    """values[numerator] / values[denominator]; None if there are none, NaN if divided by 0."""
    if values.empty:
        return None
    top, bottom = float(values.iloc[numerator]), float(values.iloc[denominator])
    return top / bottom if bottom else math.nan


def _as_table(rows: list[Row]) -> pa.Table:
    """Rows as columns of one type each; where a knob takes words and numbers, all are words."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            columns[name] = pa.array([None if v is None else str(v) for v in values])
    return pa.table(columns)


def _write(table: pa.Table, stamps: Mapping[str, str], cache: Path) -> None:
    with atomic.writing(cache) as file:
        pq.write_table(table.replace_schema_metadata({STAMPS: json.dumps(stamps)}), file)
