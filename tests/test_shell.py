"""Commands exit silently when stdout is closed; a sweep goes on."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from stability import shell

COMMANDS = (
    "run",
    "plot",
    "claims",
    "theory",
    "bench",
    "replay",
    "compare",
    "export",
    "work",
    "status",
)
SMALL = ["depth=1,2", "model.width=8", "model.heads=1", "train.steps=0", "train.batch_size=1"]


def into_closed_pipe(words, **env):
    """Run a command whose stdout is a pipe that nothing reads: its stderr and its exit code."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", *words], stdout=writer, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **env}, check=False,
    )  # fmt: skip
    os.close(writer)
    return done.stderr, done.returncode


def all_completed(sweep):
    runs = list(sweep.glob("*/run.json"))
    return len(runs) == 2 and all('"completed"' in run.read_text() for run in runs)


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_into_a_closed_pipe_is_no_error(name, unbuffered):
    stderr, code = into_closed_pipe([f"stability.{name}", "--help"], PYTHONUNBUFFERED=unbuffered)
    assert stderr == ""
    assert code in (shell.BROKEN_PIPE, 0)  # argparse ignores the error if it can


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_our_version(name):
    command = [sys.executable, "-m", f"stability.{name}", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"stability {version(shell.DISTRIBUTION)}\n"


def test_a_list_into_a_closed_pipe_is_no_error():
    assert into_closed_pipe(["stability.claims", "--sweeps"]) == ("", shell.BROKEN_PIPE)


def test_a_sweep_goes_on_when_stdout_is_a_closed_pipe(tmp_path):
    words = ["stability.run", *SMALL, f"out={tmp_path}", "name=unseen"]
    assert into_closed_pipe(words) == ("", 0)
    assert all_completed(tmp_path / "unseen")


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0>&- 1>&- 2>&-", "1>/dev/full"])
def test_a_sweep_goes_on_when_streams_are_closed_or_full(tmp_path, closed):
    words = [sys.executable, "-m", "stability.run", *SMALL, f"out={tmp_path}", "name=closed"]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert all_completed(tmp_path / "closed")


@shell.quiet_exit
def returning(result):
    """A command that returns its argument, or raises it."""
    if isinstance(result, BaseException):
        raise result
    return result


def test_another_broken_pipe_is_an_error():
    with pytest.raises(BrokenPipeError, match="worker"):
        returning(BrokenPipeError("to a worker"))


def test_ctrl_c_exits_with_130():
    assert returning(KeyboardInterrupt()) == 130


@pytest.mark.parametrize("code", [0, 2, None])
def test_the_exit_code_of_a_command_is_returned(code):
    assert returning(code) is code
