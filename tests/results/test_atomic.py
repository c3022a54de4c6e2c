"""A file is whole or absent, its bytes and its name are forced to disk, and failures leave none."""

import json
import math
import os

import numpy as np
import pytest

from stability.results import atomic


@pytest.fixture
def forced(monkeypatch, tmp_path) -> list[tuple[str, str, bytes | None]]:
    """Each fsync in a folder: ``file`` or ``folder``, the name, and what the file held then."""
    seen = []
    fsync = os.fsync

    def record(handle: int) -> None:
        inode = os.fstat(handle).st_ino
        (path,) = (p for p in (tmp_path, *tmp_path.iterdir()) if p.stat().st_ino == inode)
        kind = "folder" if path.is_dir() else "file"
        seen.append((kind, path.name, None if path.is_dir() else path.read_bytes()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    return seen


def test_the_bytes_are_forced_to_disk_before_the_name_and_the_name_after(tmp_path, forced):
    path = tmp_path / "run.json"
    path.write_text("old")
    with atomic.writing(path) as file:
        file.write(b"new")
        assert path.read_text() == "old" and not forced
    assert path.read_text() == "new"
    (kind, name, held), folder = forced
    assert (kind, held) == ("file", b"new"), "forced before all was written"
    assert name != path.name, "forced after it had its name"
    assert folder == ("folder", tmp_path.name, None)


def test_the_folder_is_forced_after_the_file_has_its_name(tmp_path, monkeypatch):
    named = []
    path = tmp_path / "file"
    monkeypatch.setattr(atomic, "_force", lambda folder: named.append((folder, path.exists())))
    atomic.write_text(path, "text")
    assert named == [(tmp_path, True)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, forced, error):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error), atomic.writing(path) as file:
        file.write(b"half")
        assert len(list(tmp_path.iterdir())) == 2
        raise error
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"
    assert not forced


def test_a_name_that_cannot_be_given_leaves_no_file_either(tmp_path):
    path = tmp_path / "taken"
    path.mkdir()
    with pytest.raises(OSError):
        atomic.write_text(path, "text")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_what_cannot_be_opened_says_so_and_nothing_else(tmp_path):
    with pytest.raises(FileNotFoundError) as refused:
        atomic.write_text(tmp_path / "absent" / "file", "text")
    assert refused.value.__context__ is None


def test_the_hidden_file_is_one_that_readers_of_folders_pass_over(tmp_path):
    with atomic.writing(tmp_path / "part-000001.parquet"):
        (hidden,) = tmp_path.iterdir()
        assert hidden.name.startswith(".")
        assert not list(tmp_path.glob("part-*"))


def test_text_is_written_as_utf_8(tmp_path):
    atomic.write_text(tmp_path / "text", "σ² ≈ 1")
    assert (tmp_path / "text").read_bytes() == "σ² ≈ 1".encode()


def test_json_holds_null_where_a_number_is_not_finite(tmp_path):
    content = {
        "a": math.nan,
        "b": [1.0, -math.inf, {"c": np.float64("inf")}],
        "d": np.int64(3),
        "e": (True, "text", None),
    }
    wanted = {"a": None, "b": [1.0, None, {"c": None}], "d": 3, "e": [True, "text", None]}
    assert atomic.write_json(tmp_path / "file", content) == wanted
    assert json.loads((tmp_path / "file").read_text()) == wanted


def test_processes_of_one_number_write_under_different_names(tmp_path, monkeypatch):
    """Two containers on one folder may each have a process 7."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    with (
        atomic.writing(tmp_path / "a", "w") as first,
        atomic.writing(tmp_path / "a", "w") as second,
    ):
        assert first.name != second.name
        first.write("first")
        second.write("second")
    assert (tmp_path / "a").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
