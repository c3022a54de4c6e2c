"""Run folders on disk -> tidy frames: the rows of a table, with what varies joined as columns."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_, or_
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
from stability.results.sweep_rows import Option, SweepRows

Where = Mapping[str, Sequence[Any]]
"""Column of a table -> the values to keep."""

AnyOf = Where | Sequence[Where]
"""Rows that satisfy it, or one of several."""

_PATHS = ("data.path", "data.val_path")


def load(
    path: str | Path,
    table: str = "layers",
    columns: Sequence[str] | None = None,
    where: AnyOf | None = None,
) -> pd.DataFrame:
    """Rows of a table for every run at or below a path, with the varying axes joined as columns.

    Runs that cannot be read are left out; `sweep_rows` says which, and why.

    Args:
        path: a run, a sweep, or a folder of sweeps (then ``sweep`` is a column).
        table: ``layers``, ``steps``, ``probes``, or ``runs`` for one row per run.
        columns: which to return; may name columns of the table and of ``runs``. The varying axes
            are always returned. By default all columns of the table.
        where: column of the table -> values to keep, or several of these, of which a row satisfies
            one; other rows are not read from disk.

    Raises:
        Unreadable: there are no runs, or none that can be read.
        KeyError: a column that neither the table nor ``runs`` has.
    """
    return sweep_rows(path, table, columns, where).frame


def sweep_rows(
    path: str | Path,
    table: str = "layers",
    columns: Sequence[str] | None = None,
    where: AnyOf | None = None,
) -> SweepRows:
    """What `load` returns, with axes, labels, remarks and damaged runs: the input of a figure.

    Args and errors as `load`.
    """
    if table not in (*TABLES, "runs"):
        raise KeyError(f"no table {table}; known: {', '.join((*TABLES, 'runs'))}")
    found = sweeps(path)
    indices = {sweep: index(sweep, folders) for sweep, folders in found.items()}
    runs_of = {sweep: one.runs.assign(sweep=sweep.name) for sweep, one in indices.items()}
    runs = pd.concat(runs_of.values(), ignore_index=True)
    axes = varying(runs)
    if table == "runs":
        frame = runs if columns is None else runs[[*dict.fromkeys((*axes, *columns))]]
    else:
        parts = [
            _rows(found[sweep], of_sweep, table, axes, columns, where)
            for sweep, of_sweep in runs_of.items()
        ]
        frame = pd.concat(parts, ignore_index=True)
    return SweepRows(
        frame.assign(**_in_legend_order(frame, runs, axes)),
        tuple(axis for axis in axes if axis != "seed"),
        options(runs),
        tuple(remarks(runs)),
        {name: why for one in indices.values() for name, why in one.damaged.items()},
    )


def _rows(
    folders: list[Path],
    runs: pd.DataFrame,
    table: str,
    axes: list[str],
    columns: Sequence[str] | None,
    where: AnyOf | None,
) -> pd.DataFrame:
    """Rows of one sweep's table, with the columns of ``runs`` that are asked for."""
    own = [c.name for c in TABLES[table]]
    asked = own if columns is None else list(columns)
    of_runs = [c for c in dict.fromkeys((*axes, *asked)) if c not in own]
    for name in of_runs:
        if name not in runs:
            raise KeyError(f"neither {table} nor runs has a column {name}")
    kept = _filter(where)
    wanted = [*dict.fromkeys(("run", *(c for c in asked if c in own)))]
    readable = set(runs["folder"])

    def scan() -> pd.DataFrame:
        paths = [p for f in folders if f.name in readable for p in tables.files(f, table)]
        return tables.scan(paths, table, wanted, kept).to_pandas()

    try:
        rows = tables.settled(scan)
    except integrity.DAMAGE as error:  # the index has read them whole, so it is recent
        raise Unreadable(f"{folders[0].parent}: {str(error).splitlines()[0]}") from error
    place = pd.Index(runs["run"]).get_indexer(rows["run"].astype(str))
    joined = runs[of_runs].take(place).set_axis(rows.index)
    return pd.concat([rows, joined], axis=1)


def _filter(where: AnyOf | None) -> pc.Expression | None:
    """What a row must satisfy to be read; None where every row does."""
    either = [where] if isinstance(where, Mapping) else list(where or [])
    found = [
        reduce(and_, (pc.field(name).isin(list(values)) for name, values in each.items()))
        for each in either
        if each
    ]
    return reduce(or_, found) if found and len(found) == len(either) else None


def _in_legend_order(
    frame: pd.DataFrame, runs: pd.DataFrame, axes: Sequence[str]
) -> dict[str, pd.Categorical]:
    """The axes of names as categories in the order of legends."""
    return {
        axis: pd.Categorical(frame[axis].astype(str), legend_order(runs, axis))
        for axis in axes
        if axis in frame and not pd.api.types.is_numeric_dtype(frame[axis])
    }


def varying(runs: pd.DataFrame) -> list[str]:
    """Axes in which the runs differ, the main ones first; the seed may be one.

    The label and the settings of external recordings are axes.

    What an option brings along (its label, its class, a model's width) is not an axis of its own
    where it follows from the option.
    """
    known = [*AXES, "model", "data", "label", *KNOBS, *_PATHS, "sweep"]
    extra = [c for c in runs if ".build." in c and c.replace(".build", "") not in KNOBS]
    extra += [c for c in runs if c.startswith("settings.")]
    axes: list[str] = []
    for key in dict.fromkeys((*known, *extra)):
        ignored = key in KNOBS and not KNOBS[key].identity and key not in _PATHS
        if key not in runs or ignored or runs[key].nunique(dropna=False) < 2:
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


def options(runs: pd.DataFrame) -> dict[str, dict[str, Option]]:
    """Group -> option -> label and order, as the runs' own configs state them."""
    found: dict[str, dict[str, Option]] = {}
    for group in GROUPS:
        if {group, f"{group}.label", f"{group}.order"} <= set(runs):
            named = runs[[group, f"{group}.label", f"{group}.order"]].drop_duplicates(group)
            named = named.dropna(subset=f"{group}.order")
            found[group] = {
                str(name): Option(str(label or name), int(order))
                for name, label, order in named.itertuples(index=False)
            }
    return found


def legend_order(runs: pd.DataFrame, axis: str) -> list[str]:
    """Values of an axis of names in the order in which legends list them."""
    order = {name: option.order for name, option in options(runs).get(axis, {}).items()}
    if axis == "dtype":
        order = {name: place for place, name in enumerate(DTYPES)}
    names = runs[axis].astype(str).unique()
    return sorted(names, key=lambda name: (order.get(name, len(order)), name))


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
