"""A command in a pipe ends without a word when its reader has gone."""

import os
import subprocess
import sys

import pytest

from stability import shell

COMMANDS = ("run", "plot", "claims", "theory", "bench", "replay")


def unread(words, **env):
    """A command whose output has no reader: what it said on stderr, and its exit code."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", *words], stdout=writer, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **env}, check=False,
    )  # fmt: skip
    os.close(writer)
    return done.stderr, done.returncode


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_that_nobody_reads_is_no_error(name, unbuffered):
    said, code = unread([f"stability.{name}", "--help"], PYTHONUNBUFFERED=unbuffered)
    assert said == ""
    assert code in (shell.BROKEN_PIPE, 0)  # argparse passes over the error where it can


def test_a_list_that_nobody_reads_is_no_error():
    assert unread(["stability.claims", "--sweeps"]) == ("", shell.BROKEN_PIPE)


def test_a_sweep_goes_on_when_nobody_reads_what_it_shows(tmp_path):
    small = ["depth=1,2", "model.width=8", "model.heads=1", "train.steps=0", "train.batch_size=1"]
    words = ["stability.run", *small, f"out={tmp_path}", "name=unseen"]
    assert unread(words) == ("", 0)
    runs = list((tmp_path / "unseen").glob("*/run.json"))
    assert len(runs) == 2 and all('"completed"' in run.read_text() for run in runs)


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0>&- 1>&- 2>&-", "1>/dev/full"])
def test_a_sweep_goes_on_where_what_it_shows_can_go_nowhere(tmp_path, closed):
    small = ["depth=1,2", "model.width=8", "model.heads=1", "train.steps=0", "train.batch_size=1"]
    words = [sys.executable, "-m", "stability.run", *small, f"out={tmp_path}", "name=closed"]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    runs = list((tmp_path / "closed").glob("*/run.json"))
    assert len(runs) == 2 and all('"completed"' in run.read_text() for run in runs)


def test_another_broken_pipe_is_an_error():
    @shell.when_unread
    def main():
        raise BrokenPipeError("to a worker")

    with pytest.raises(BrokenPipeError, match="worker"):
        main()


def test_what_is_read_is_returned_as_it_is():
    assert shell.when_unread(lambda code: code)(2) == 2
