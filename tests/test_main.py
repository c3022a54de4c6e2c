"""``python -m stability``: the list of commands, and each command by its name."""

import subprocess
import sys

import pytest

from stability.__main__ import COMMANDS, main


def call(*words):
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_without_a_command_all_are_listed(words, capsys):
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert all(f"    {name} " in printed for name in COMMANDS)


def test_a_command_is_run_as_its_module_is(tmp_path):
    missing = str(tmp_path / "missing")
    done, expected = call("stability", "plot", missing), call("stability.plot", missing)
    assert done.returncode == expected.returncode == 2
    assert done.stderr == expected.stderr != ""


def test_a_run_notes_the_command_that_repeats_it(tmp_path):
    words = ["depth=1", "train.steps=0", "model.width=8", "model.heads=1", f"out={tmp_path}"]
    done = call("stability", "run", *words)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.rglob("run.json")
    assert "python -m stability.run depth=1" in file.read_text()


@pytest.mark.parametrize(
    ("word", "said"), [("plto", "did you mean plot?"), ("zzz", "must be one of catalogue, run")]
)
def test_an_unknown_command_is_refused_in_a_line(word, said, capsys):
    assert main([word]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"stability: {word}: must be one of catalogue,") and said in error
    assert error.count("\n") == 1


def test_the_version_is_this_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("stability 0.")
