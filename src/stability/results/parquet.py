"""Tables of a run on disk: rows are appended in small steps and can be read at any moment.

They are ``layers.parquet``, ``steps.parquet`` and ``probes.parquet``. While a run goes on,
`Writer.flush` writes complete parquet files to ``<table>.parts/``; at its end `Writer.close`
compacts them into ``<table>.parquet``. A file gets its name after its bytes are on disk, so that
readers see whole files only. Pages carry checksums, so that damage is noticed. The compacted file
states in its metadata how many parts it holds, so that parts which a crash left behind are not read
twice.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from stability.results import atomic, schema
from stability.results.schema import PARTS, TABLES

PARTS_HELD = b"stability.parts"
"""Metadata key of a compacted file: it holds the parts numbered below this."""

FORMAT = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)

ROW_GROUP = 1 << 15
"""Rows per row group of a compacted file; readers skip groups by the range of ``step``."""

Result = TypeVar("Result")
Columns = Mapping[str, Any]
"""Column name -> list or one-dimensional array. ``None`` in a list is null, NaN stays NaN."""


def run_metadata(config: Mapping[str, Any], run: str) -> dict[str, str]:
    """What every file of a run carries beside its rows, for a `Writer`."""
    return {
        "stability.config": json.dumps(config),
        "stability.run": run,
        "stability.format": str(schema.FORMAT),
    }


def arrow_schema(table: str) -> pa.Schema:
    """The columns of a table as pyarrow types; ``key`` is a dictionary-encoded string."""
    types = {"key": pa.dictionary(pa.int32(), pa.string())}
    return pa.schema(
        [
            pa.field(c.name, types.get(c.type) or pa.type_for_alias(c.type), not c.required)
            for c in TABLES[table]
        ]
    )


def compacted(run_dir: Path, table: str) -> Path:
    """The file of a finished table."""
    return run_dir / f"{table}.parquet"


def files(run_dir: Path, table: str) -> list[Path]:
    """Files that together hold every row of the table once, oldest first."""
    parts = _parts(run_dir, table)  # listed first, so that a compaction meanwhile hides no row
    whole = compacted(run_dir, table)
    if not whole.exists():
        return parts
    held = _held(whole) if parts else 0
    return [whole, *(p for p in parts if _number(p) >= held)]


def scan(
    paths: Iterable[Path],
    table: str,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
) -> pa.Table:
    """Rows of many files as one table; other columns and excluded row groups are not read."""
    schema = arrow_schema(table)
    dataset = ds.dataset([str(p) for p in paths], schema=schema, format=FORMAT)
    names = list(columns) if columns is not None else schema.names
    return dataset.to_table(columns=names, filter=filter).unify_dictionaries()


def read(
    run_dir: Path,
    table: str,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
) -> pa.Table:
    """All rows of one run's table, finished or not; without any file an empty table."""
    return settled(lambda: scan(files(run_dir, table), table, columns, filter))


def at_step(step: int) -> ds.Expression:
    """A filter for `read`: the rows of one step."""
    return ds.field("step") == step


def settled(look: Callable[[], Result]) -> Result:
    """The result of reading files; reads again if one is gone, since a run compacts its parts."""
    for _ in range(9):
        with suppress(FileNotFoundError):
            return look()
    return look()


def discard(run_dir: Path, table: str) -> None:
    """Delete the compacted file, the part files, and a symbolic link in their place."""
    compacted(run_dir, table).unlink(missing_ok=True)
    _drop_link(run_dir, table)
    _drop_parts(run_dir, table)


def _drop_link(run_dir: Path, table: str) -> None:
    """Remove a symbolic link in the place of the parts' folder: its target is not the run's."""
    folder = run_dir / f"{table}{PARTS}"
    if folder.is_symlink():
        folder.unlink()


def _drop_parts(run_dir: Path, table: str) -> None:
    folder = run_dir / f"{table}{PARTS}"
    for leftover in [*_parts(run_dir, table), *folder.glob(".part-*")]:
        leftover.unlink()
    with suppress(OSError):  # absent, or it holds a file that is no part
        folder.rmdir()


class Writer:
    """Appends rows to one table of one run.

    Args:
        run_dir: the run's folder.
        table: a key of `schema.TABLES`.
        metadata: text stored in every file.
    """

    def __init__(self, run_dir: Path, table: str, metadata: Mapping[str, str]) -> None:
        self._dir, self._table = run_dir, table
        text = {k.encode(): v.encode() for k, v in metadata.items()}
        self._schema = arrow_schema(table).with_metadata(text)
        keys = [f.name for f in self._schema if pa.types.is_dictionary(f.type)]
        self._repeating = ["run", *keys]
        """Columns of few values, which parquet stores once."""
        self._waiting: list[pa.RecordBatch] = []
        _drop_link(run_dir, table)
        whole = compacted(run_dir, table)
        taken = [_number(p) + 1 for p in _parts(run_dir, table)]
        self._next = max([_held(whole) if whole.exists() else 0, *taken])

    def describe(self, metadata: Mapping[str, str]) -> None:
        """Replace the text that files written from now on carry."""
        text = {k.encode(): v.encode() for k, v in metadata.items()}
        self._schema = self._schema.with_metadata(text)
        self._waiting = [batch.replace_schema_metadata(text) for batch in self._waiting]

    @property
    def pending(self) -> int:
        """Rows that are not on disk yet."""
        return sum(batch.num_rows for batch in self._waiting)

    def append(self, columns: Columns) -> None:
        """Add rows, to be written at the next flush. Absent columns are null."""
        unknown = set(columns) - set(self._schema.names)
        if unknown:
            raise KeyError(f"{self._table} has no column {', '.join(sorted(unknown))}")
        rows = {len(values) for values in columns.values()}
        if len(rows) != 1:
            raise ValueError(f"columns of {self._table} differ in length: {sorted(rows)}")
        arrays = [_array(columns.get(f.name), f, *rows) for f in self._schema]
        self._waiting.append(pa.record_batch(arrays, schema=self._schema))

    def flush(self) -> None:
        """Write the waiting rows as one part file; they survive whatever happens afterwards."""
        if not self.pending:
            return
        folder = self._dir / f"{self._table}{PARTS}"
        folder.mkdir(parents=True, exist_ok=True)
        rows = pa.Table.from_batches(self._waiting, self._schema)
        self._write(rows, folder / f"part-{self._next:06d}.parquet")
        self._waiting.clear()
        self._next += 1

    def close(self) -> None:
        """Flush, and compact all parts into one file. May be repeated."""
        self.flush()
        if files(self._dir, self._table) != [compacted(self._dir, self._table)]:
            self._compact(None)
        _drop_parts(self._dir, self._table)

    def keep(self, steps: Iterable[int]) -> None:
        """Drop the rows of all other steps, which a resumed run writes again."""
        self._waiting.clear()
        if files(self._dir, self._table):
            self._compact(ds.field("step").isin(list(steps)))
            _drop_parts(self._dir, self._table)

    def _compact(self, filter: ds.Expression | None) -> None:
        """Write all rows that pass the filter to the compacted file."""
        whole = compacted(self._dir, self._table)
        rows = read(self._dir, self._table, filter=filter)
        held = {**self._schema.metadata, PARTS_HELD: str(self._next).encode()}
        self._write(rows.cast(self._schema).replace_schema_metadata(held), whole)

    def _write(self, rows: pa.Table, path: Path) -> None:
        with atomic.writing(path) as file:
            pq.write_table(
                rows.unify_dictionaries(),
                file,
                row_group_size=ROW_GROUP,
                use_dictionary=self._repeating,
                write_page_checksum=True,
            )


def _array(values: Any, field: pa.Field, rows: int) -> pa.Array:
    plain = pa.string() if pa.types.is_dictionary(field.type) else field.type
    array = pa.nulls(rows, plain) if values is None else pa.array(values, type=plain)
    if array.null_count and not field.nullable:
        raise ValueError(f"column {field.name} may not be null")
    return array.dictionary_encode() if plain is not field.type else array


def _parts(run_dir: Path, table: str) -> list[Path]:
    return sorted((run_dir / f"{table}{PARTS}").glob("part-*.parquet"))


def _number(part: Path) -> int:
    return int(part.stem.removeprefix("part-"))


def _held(whole: Path) -> int:
    metadata = pq.read_metadata(whole).metadata or {}
    return int(metadata.get(PARTS_HELD, 0))
