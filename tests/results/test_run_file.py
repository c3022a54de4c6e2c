"""run.json: one list of fields, whoever writes it."""

import dataclasses
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stability.results import run_file
from stability.results.run_file import RunFile, ending, one_line

FINFO = {"dtype": "fp32", "max": 3.4e38}


def begun(folder, **changes) -> RunFile:
    return dataclasses.replace(RunFile.begin(folder, "0badf00d", {"sha256": "d"}, FINFO), **changes)


def test_a_run_that_begins_says_by_what_it_is_made_and_null_for_what_is_not_known(tmp_path):
    state = begun(tmp_path / "a").write(tmp_path)
    assert state == json.loads((tmp_path / "run.json").read_text())
    assert (state["run"], state["folder"], state["data"]) == ("0badf00d", "a", {"sha256": "d"})
    assert state["status"] == state["outcome"] == "running"
    assert (state["format"], state["steps_done"], state["finfo"]) == (1, 0, FINFO)
    assert state["versions"] == run_file.versions()
    assert state["git"] == run_file.git_revision()
    known = "format run folder status outcome steps_done data versions command host pid started"
    assert {k for k, v in state.items() if v is not None} - {"git"} == {*known.split(), "finfo"}


def test_what_is_written_is_read_back(tmp_path):
    written = begun(tmp_path, final_loss=2.5, identity={"seed": 0}, seconds=1.5)
    written.write(tmp_path)
    assert RunFile.read(tmp_path) == written


def test_a_field_that_an_older_file_lacks_is_null_and_one_it_has_more_is_passed_over(tmp_path):
    old = {"run": "0badf00d", "folder": "a", "data": {}, "status": "completed", "mood": "good"}
    (tmp_path / "run.json").write_text(json.dumps(old))
    found = RunFile.read(tmp_path)
    assert (found.run, found.status, found.device) == ("0badf00d", "completed", None)


@pytest.mark.parametrize("text", ["{", "[]", '{"run": "0badf00d"}'])
def test_what_is_no_account_of_a_run_is_refused(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises((ValueError, TypeError)):
        RunFile.read(tmp_path)


def test_a_run_that_fails_says_why_in_one_line(tmp_path):
    state = begun(tmp_path)
    state.fail(ValueError("no room\nleft"))
    assert (state.status, state.error) == ("failed", "ValueError: no room left")
    assert state.outcome == "failed: ValueError: no room left"
    assert state.finished is not None
    assert ending("interrupted", "why").keys() == ending("failed", "why").keys()
    assert ending("interrupted", "why")["outcome"] == "interrupted: why"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a\n b\tc"), "ValueError: a b c"),
        (RuntimeError("first\n\nsecond"), "RuntimeError: first"),
        (MemoryError(), "MemoryError"),
        (KeyError("name"), "KeyError: 'name'"),
    ],
)
def test_an_exception_becomes_one_line(error, line):
    assert one_line(error) == line


def test_a_long_message_is_cut():
    assert len(one_line(ValueError("x" * 1000))) == 300


def test_times_are_utc_to_the_second():
    text = run_file.now()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", text)
    assert abs(datetime.fromisoformat(text) - datetime.now(UTC)) < timedelta(seconds=60)


def test_every_field_has_a_meaning():
    assert all(f.metadata["doc"].strip() for f in dataclasses.fields(RunFile))


@pytest.mark.parametrize(
    ("file", "typed"),
    [
        ("run.py", "python -m stability.run norm=pre 'name=a b'"),
        ("claims/__main__.py", "python -m stability.claims norm=pre 'name=a b'"),
    ],
)
def test_the_command_is_what_was_typed(monkeypatch, file, typed):
    package = Path(run_file.__file__).parents[1]
    monkeypatch.setattr(sys, "argv", [str(package / file), "norm=pre", "name=a b"])
    assert run_file.command() == typed


def test_the_command_of_another_program_is_its_file(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/train.py", "--fast"])
    assert run_file.command() == f"{sys.executable} /somewhere/train.py --fast"


def test_the_revision_is_that_of_the_checkout(monkeypatch, tmp_path):
    """In a checkout of its own, since the tests may run from an installed package."""
    copy = tmp_path / "run_file.py"
    copy.write_text("")
    monkeypatch.setattr(run_file, "__file__", str(copy))
    revision = run_file.git_revision.__wrapped__
    assert revision() is None, "outside of a checkout"

    def git(*args: str) -> str:
        settings = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *settings, *args], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init")
    assert revision() is None, "inside a checkout that does not hold the package"
    git("add", "run_file.py")
    git("commit", "-m", "first")
    assert revision() == {"revision": git("rev-parse", "HEAD"), "dirty": False}
    copy.write_text("changed")
    assert revision() == {"revision": git("rev-parse", "HEAD"), "dirty": True}
