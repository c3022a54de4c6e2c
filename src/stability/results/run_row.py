"""One run folder -> one row of the index; every file of the run is read and checked."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from stability.config.identity import flatten
from stability.config.knobs import GROUPS, KNOBS
from stability.results import integrity
from stability.results import parquet as tables
from stability.results.atomic import Unreadable
from stability.results.schema import CONFIG_FILE, FORMAT, RUN_FILE, TABLES

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


def run_row(folder: Path) -> Row:
    """What ``run.json`` says, the flattened config, and the last recorded step.

    Raises:
        Unreadable: a file is missing, torn or of another kind.
    """
    state, config = _state(folder / RUN_FILE), read_config(folder)
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


def read_config(folder: Path) -> Row:
    """A run's config.yaml, as nested plain containers.

    Raises:
        Unreadable: it is missing, torn or no config.
    """
    path = folder / CONFIG_FILE
    with _reading(path):
        config = yaml.load(path.read_text(), LOADER)
    _require(path, config, "choices")
    if not isinstance(config["choices"], Mapping):
        raise Unreadable(f"{path}: damaged (choices must be a mapping)")
    try:
        json.dumps(config)
    except (TypeError, ValueError) as error:  # a date, a set, a node that contains itself
        raise Unreadable(f"{path}: damaged ({error})") from error
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
        if "step" not in footer.schema.names:
            raise Unreadable(f"{file}: damaged (has no column step)")
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
