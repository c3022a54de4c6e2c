"""Damage to the files of a run is found: a missing end at once, a changed byte by reading."""

import numpy as np
import pytest

from stability.results.integrity import is_torn, is_whole
from stability.results.parquet import Writer


@pytest.fixture(params=["close", "flush"])
def run(request, tmp_path):
    """A run with a finished table, or with one in parts, and the file of its rows."""
    writer = Writer(tmp_path, "steps", {})
    rows = {
        "run": ["a"] * 999,
        "step": np.arange(999),
        "loss": np.random.default_rng(0).random(999),
    }
    writer.append(rows)
    getattr(writer, request.param)()
    (file,) = tmp_path.rglob("*.parquet")
    return tmp_path, file


def test_a_run_is_whole_as_written_and_without_files(run, tmp_path_factory):
    folder, _ = run
    assert is_whole(folder) and not is_torn(folder)
    empty = tmp_path_factory.mktemp("empty")
    assert is_whole(empty) and not is_torn(empty)


def test_a_file_without_its_end_is_torn(run):
    folder, file = run
    file.write_bytes(file.read_bytes()[:-9])
    assert is_torn(folder) and not is_whole(folder)


def test_a_changed_byte_is_found_where_everything_is_read(run):
    folder, file = run
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert not is_torn(folder)
    assert not is_whole(folder)
