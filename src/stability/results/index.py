"""Run folders on disk -> one row per run, cached beside them in ``runs.parquet``.

A row holds what ``run.json`` says, the flattened config, and how the run grew. Rows are made again
only for runs that have changed since, so that a sweep of a thousand runs opens at once.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from stability.config.identity import flatten
from stability.config.knobs import GROUPS, KNOBS
from stability.results import atomic, integrity
from stability.results import parquet as tables
from stability.results.atomic import Unreadable
from stability.results.schema import CONFIG_FILE, FINISHED, FORMAT, RUN_FILE, RUNS_FILE, TABLES
from stability.results.stream import block_outputs, l2

STAMPS = b"stability.stamps"
"""Metadata key of ``runs.parquet``: folder of each finished run -> what its row was made from."""

OUTCOME = (
    *("final_loss", "final_val_loss", "learned"),
    *("data.unigram_entropy", "data.bigram_entropy", "data.entropy_rate"),
)
KNOWN = [*GROUPS, *(k for k in KNOBS if k != "claim" and not k.endswith(".build")), *OUTCOME]
"""Columns that every row has: null where a run is of an external model, which lacks them."""

Row = dict[str, Any]
"""Column -> value, of one run."""

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Safe, and ten times faster than the loader in Python where libyaml is installed."""


class RunIndex(NamedTuple):
    """The runs of a sweep."""

    runs: pd.DataFrame
    """One row per run that can be read."""
    damaged: dict[str, str]
    """Folder of each run that cannot be read -> the reason."""


def sweeps(path: str | Path) -> dict[Path, list[Path]]:
    """Sweep folder -> its run folders, for all sweeps at or below a path.

    A path that is itself a run folder is a sweep of one.

    Raises:
        Unreadable: the path is missing, no folder, or holds no run.
    """
    path = Path(path)
    if not path.is_dir():
        raise Unreadable(f"{path}: {'is not a folder' if path.exists() else 'does not exist'}")
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
    is that of the median token.

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
            made[folder.name] = _row(folder)
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
    if not {"folder", *KNOWN} <= set(table.column_names):  # of a version with fewer knobs
        return {}
    return {
        row["folder"]: (row, stamps[row["folder"]])
        for row in table.to_pylist()
        if row["folder"] in stamps
    }


def _row(folder: Path) -> Row:
    """One run's row. Raises Unreadable where a file is missing, torn or of another kind."""
    state, config = _state(folder / RUN_FILE), _config(folder / CONFIG_FILE)
    row = dict.fromkeys(KNOWN) | flatten(config) | _scalars(state) | {"folder": folder.name}
    _require(folder / RUN_FILE, row, "data.sha256")
    steps = []
    for table in TABLES:
        with _reading(folder):
            files = tables.files(folder, table)
        for file in files:
            last = _verified(file, table)
            steps += [last] if table == "layers" and last is not None else []
    return row | {"last_step": max(steps, default=None)}


def _state(path: Path) -> Row:
    with _reading(path):
        state = json.loads(path.read_text())
    _require(path, state, "format")
    if not isinstance(state["format"], int):
        raise Unreadable(f"{path}: damaged (format {state['format']!r} is not a number)")
    if state["format"] > FORMAT:
        raise Unreadable(f"{path}: format {state['format']}, but this version reads {FORMAT}")
    _require(path, state, "run", "status")
    return dict(state)


def _config(path: Path) -> Row:
    with _reading(path):
        config = yaml.load(path.read_text(), LOADER)
    _require(path, config, "choices")
    if not isinstance(config["choices"], Mapping):
        raise Unreadable(f"{path}: damaged (choices must be a mapping)")
    return dict(config)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns what reading a damaged file raises into Unreadable with the file's name."""
    try:
        yield
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror or error}") from error
    except (*integrity.DAMAGE, yaml.YAMLError) as error:
        reason, _, _ = str(error).partition("\n")
        raise Unreadable(f"{path}: damaged ({reason})") from error


def _require(path: Path, content: object, *names: str) -> None:
    """Raise Unreadable where a file holds no mapping, or one without these names."""
    if not isinstance(content, Mapping):
        raise Unreadable(f"{path}: damaged (must hold a mapping)")
    if missing := [name for name in names if name not in content]:
        raise Unreadable(f"{path}: lacks {', '.join(missing)}")


def _verified(file: Path, table: str) -> int | None:
    """The largest step in a file, from its footer, once the file has been read to its end."""
    with _reading(file):
        integrity.verify(file, table)
        footer = pq.read_metadata(file)
        at = footer.schema.names.index("step")
        groups = [footer.row_group(i).column(at).statistics for i in range(footer.num_row_groups)]
        return max((int(s.max) for s in groups if s is not None and s.has_min_max), default=None)


def _scalars(node: Mapping[str, Any], prefix: str = "") -> Row:
    """Nested state as flat columns, ``first_bad.layer``; lists become JSON text."""
    row: Row = {}
    for name, value in node.items():
        if name == "identity":
            continue
        if isinstance(value, Mapping):
            row |= _scalars(value, f"{prefix}{name}.")
        else:
            row[prefix + name] = json.dumps(value) if isinstance(value, list) else value
    return row


def _add_growth(folders: list[Path], rows: list[Row]) -> None:
    """Fill in how variance and gradient change from the first block's output to the last one's."""
    for row in rows:
        row |= dict.fromkeys(("variance_growth", "grad_ratio", "grad_ratio_median"))
    last = {row["run"]: row["last_step"] for row in rows}
    keys = ["run", "step", "layer", "sublayer", "site", "kind", "numel", "nonfinite"]
    wanted = (pc.field("site") == "resid_post") & pc.field("step").isin(
        sorted({*last.values()} - {None})
    )
    stats = ["var", "rms", "token_rms_median"]

    def scan() -> pd.DataFrame:
        paths = [p for folder in folders for p in tables.files(folder, "layers")]
        return tables.scan(paths, "layers", keys + stats, wanted).to_pandas()

    found = block_outputs(tables.settled(scan))
    found = found[(found["l"] > 0) & (found["step"] == found["run"].astype(str).map(last))]
    found = found.sort_values("l").assign(size=l2(found))
    of_run = dict(iter(found.groupby("run", observed=True)))
    for row in rows:
        if row["run"] in of_run:
            run = of_run[row["run"]]
            act, grad = run[run["kind"] == "act"], run[run["kind"] == "grad"]
            row["variance_growth"] = _over(act["var"], -1, 0)
            row["grad_ratio"] = _over(grad["size"], 0, -1)
            row["grad_ratio_median"] = _over(grad["token_rms_median"], 0, -1)


def _over(values: pd.Series, above: int, below: int) -> float | None:
    if values.empty:
        return None
    top, bottom = float(values.iloc[above]), float(values.iloc[below])
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
