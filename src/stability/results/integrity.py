"""Checks whether the tables of a run are complete and uncorrupted."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from stability.results import parquet as tables
from stability.results.schema import TABLES

DAMAGE = (OSError, ValueError, pa.ArrowException)
"""What reading a damaged file raises."""


def verify(path: Path, table: str) -> None:
    """Read a file to its end and discard the rows.

    Raises:
        Exception: one of `DAMAGE`, if it is not what was written.
    """
    schema = tables.arrow_schema(table)
    for _ in ds.dataset(str(path), schema=schema, format=tables.FORMAT).to_batches():
        pass


def is_torn(run_dir: Path) -> bool:
    """Whether the end of any file of a run is missing: told at once, without reading the rest.

    Raises:
        OSError: the disk could not be read, which says nothing about the files.
    """
    return not _passes(run_dir, lambda path, table: pq.read_metadata(path))


def is_whole(run_dir: Path) -> bool:
    """Whether every file of a run can be read to its end.

    Raises:
        OSError: the disk could not be read, which says nothing about the files.
    """
    return _passes(run_dir, verify)


def _passes(run_dir: Path, look: Callable[[Path, str], object]) -> bool:
    try:
        for table in TABLES:
            for path in tables.files(run_dir, table):
                look(path, table)
    except (FileNotFoundError, ValueError, pa.ArrowException):
        return False
    except OSError as error:
        if error.errno is not None:  # the system's; Arrow's own, on a damaged page, has no number
            raise
        return False
    return True
