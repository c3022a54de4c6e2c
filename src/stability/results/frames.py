"""Run folders on disk -> tidy frames, the tables' rows with what varies joined as columns.

What a frame cannot carry in columns lies in its ``attrs``: ``axes`` (the columns in which the runs
differ), ``options`` (label and order of each option, from the runs' configs), ``damaged`` (runs
left out, with the reason), ``remarks`` (what a reader of a figure must know of all the runs).
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.compute as pc

from stability.config.knobs import AXES, DTYPES, GROUPS, KNOBS
from stability.results import integrity
from stability.results import parquet as tables
from stability.results.atomic import Unreadable
from stability.results.index import index, sweeps
from stability.results.schema import TABLES

_PATHS = ("data.path", "data.val_path")


def load(
    path: str | Path,
    table: str = "layers",
    columns: Sequence[str] | None = None,
    where: Mapping[str, Sequence[Any]] | None = None,
) -> pd.DataFrame:
    """Rows of a table for every run at or below a path, with the varying axes joined as columns.

    Args:
        path: a run, a sweep, or a folder of sweeps (then ``sweep`` is a column).
        table: ``layers``, ``steps``, ``probes``, or ``runs`` for one row per run.
        columns: which to return; may name columns of the table and of ``runs``. The varying axes
            always come along. By default all columns of the table.
        where: table column -> values to keep; the rest is not read from disk.

    Raises:
        Unreadable: nothing there, or the only runs are damaged.
        KeyError: a column that neither the table nor ``runs`` has.
    """
    if table not in (*TABLES, "runs"):
        raise KeyError(f"no table {table}; known: {', '.join((*TABLES, 'runs'))}")
    found = sweeps(path)
    indices = {sweep: index(sweep, folders) for sweep, folders in found.items()}
    runs = pd.concat(
        [frame.assign(sweep=sweep.name) for sweep, frame in indices.items()], ignore_index=True
    )
    axes = varying(runs)
    if table == "runs":
        rows = runs if columns is None else runs[_distinct(*axes, *columns)]
    else:
        rows = pd.concat(
            [
                _rows(found[sweep], frame.assign(sweep=sweep.name), table, axes, columns, where)
                for sweep, frame in indices.items()
            ],
            ignore_index=True,
        )
    for axis in axes:
        if axis in rows and not pd.api.types.is_numeric_dtype(rows[axis]):
            rows[axis] = pd.Categorical(rows[axis].astype(str), legend_order(runs, axis))
    damaged = {k: v for frame in indices.values() for k, v in frame.attrs["damaged"].items()}
    rows.attrs = {
        "axes": axes,
        "options": options(runs),
        "damaged": damaged,
        "remarks": remarks(runs),
    }
    return rows


def _rows(
    folders: list[Path],
    runs: pd.DataFrame,
    table: str,
    axes: list[str],
    columns: Sequence[str] | None,
    where: Mapping[str, Sequence[Any]] | None,
) -> pd.DataFrame:
    own = [c.name for c in TABLES[table]]
    asked = own if columns is None else list(columns)
    of_runs = [c for c in _distinct(*axes, *asked) if c not in own]
    for name in of_runs:
        if name not in runs:
            raise KeyError(f"neither {table} nor runs has a column {name}")
    kept = [pc.field(name).isin(list(values)) for name, values in (where or {}).items()]
    wanted = _distinct("run", *(c for c in asked if c in own))
    readable = set(runs["folder"])

    def scan() -> pd.DataFrame:
        paths = [p for f in folders if f.name in readable for p in tables.files(f, table)]
        return tables.scan(paths, table, wanted, reduce(and_, kept) if kept else None).to_pandas()

    try:
        rows = tables.settled(scan)
    except integrity.DAMAGE as error:  # since the index read them whole
        raise Unreadable(f"{folders[0].parent}: {str(error).splitlines()[0]}") from error
    place = pd.Index(runs["run"]).get_indexer(rows["run"].astype(str))
    joined = runs[of_runs].take(place).set_axis(rows.index)
    return pd.concat([rows, joined], axis=1)


def varying(runs: pd.DataFrame) -> list[str]:
    """Axes in which the runs differ, the main ones first.

    What an option brings along (its label, its class, a model's width) is not an axis of its own
    where it follows from the option.
    """
    known = [*AXES, "model", "data", *KNOBS, *_PATHS, "sweep"]
    extra = [c for c in runs if ".build." in c and c.replace(".build", "") not in KNOBS]
    axes: list[str] = []
    for key in _distinct(*known, *extra):
        quiet = key in KNOBS and not KNOBS[key].identity and key not in _PATHS
        if key not in runs or quiet or runs[key].nunique(dropna=False) < 2:
            continue
        group = key.partition(".")[0] if key != "depth" else "model"
        if group != key and group in runs and _follows(runs, key, group):
            continue
        axes.append(key)
    return axes


def _follows(runs: pd.DataFrame, key: str, group: str) -> bool:
    """Whether the option of the group varies and alone decides the key."""
    per_option = runs.groupby(group)[key].nunique(dropna=False)
    return len(per_option) > 1 and bool((per_option == 1).all())


def options(runs: pd.DataFrame) -> dict[str, dict[str, tuple[str, int]]]:
    """Group -> option -> (label, order), as the runs' own configs state them."""
    found: dict[str, dict[str, tuple[str, int]]] = {}
    for group in GROUPS:
        if {group, f"{group}.label", f"{group}.order"} <= set(runs):
            named = runs[[group, f"{group}.label", f"{group}.order"]].drop_duplicates(group)
            named = named.dropna(subset=f"{group}.order")
            found[group] = {
                str(name): (str(label or name), int(order))
                for name, label, order in named.itertuples(index=False)
            }
    return found


def legend_order(runs: pd.DataFrame, axis: str) -> list[str]:
    """Values of an axis of names in the order in which legends list them."""
    order = {name: place for name, (_, place) in options(runs).get(axis, {}).items()}
    if axis == "dtype":
        order = {name: place for place, name in enumerate(DTYPES)}
    names = runs[axis].astype(str).unique()
    return sorted(names, key=lambda name: (order[name] if name in order else len(order), name))


def remarks(runs: pd.DataFrame) -> list[str]:
    """What must be said beside any figure of these runs: differing data, unfinished runs."""
    said = []
    hashes = runs["data.sha256"].dropna().unique()
    if len(hashes) > 1:
        said.append(f"mixes {len(hashes)} data sets: {', '.join(sorted(h[:8] for h in hashes))}")
    for status in ("running", "interrupted", "failed"):
        count = int((runs["status"] == status).sum())
        if count:
            said.append(f"{count} of {len(runs)} runs {status}")
    return said


def _distinct(*names: str) -> list[str]:
    return list(dict.fromkeys(names))
