"""A project that uses this package passes a strict type check, and types are known in it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stability.recording.record import Arguments, record

ROOT = Path(__file__).parents[1]

PROJECT = """
    from pathlib import Path
    from typing import assert_type

    from torch import nn

    import stability
    import stability.hf
    import stability.lightning
    from stability.difference.compare import Comparison
    from stability.recording.external.recording import Recording

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    recording = stability.record(model, "outputs/a", r"([0-9]+)", every=10, kinds=["act"])
    assert_type(recording, Recording)
    with recording as same:
        same.log(loss=1.0)
        assert_type(same.steps_done, int)
        assert_type(same.folder, Path | None)
    frame = stability.load("outputs/a", table="layers")
    print(frame.query("step == 0")["var"].max())
    assert_type(stability.compare("outputs/a", "outputs/b"), Comparison)
    callback = stability.hf.Record("outputs/a", every=10, settings={"lr": 1e-3})
    assert_type(callback.recording, Recording | None)
    stability.lightning.Record("outputs/a", "auto", val_loss="loss/val", ring=3)
"""

WRONG = """
    stability.record(model, "outputs/a", r"([0-9]+)", every="ten")  # error
    stability.record(model, "outputs/a", r"([0-9]+)", evry=10)  # error
    stability.record(model, "outputs/a", r"([0-9]+)", steps="epochs")  # error
    stability.record(model, "outputs/a", r"([0-9]+)", also=3)  # error
    stability.hf.Record("outputs/a", every="ten")  # error
    stability.hf.Record("outputs/a", evry=10)  # error
    stability.lightning.Record("outputs/a", ring=None)  # error
    stability.load(3)  # error
    stability.compare("outputs/a")  # error
"""

CONFIG = """
    [mypy]
    strict = True
    [mypy-stability.*]
    # as if it were installed
    ignore_errors = True
    [mypy-transformers.*,lightning.*]
    # reading them takes long
    follow_imports = skip
    ignore_missing_imports = True
    [mypy-pandas.*]
    ignore_missing_imports = True
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Lines with errors of a right project and of one with mistakes behind it."""
    folder = tmp_path_factory.mktemp("project")
    right, wrong = textwrap.dedent(PROJECT), textwrap.dedent(PROJECT + WRONG)
    (folder / "right.py").write_text(right)
    (folder / "wrong.py").write_text(wrong)
    (folder / "mypy.ini").write_text(textwrap.dedent(CONFIG))
    command = [sys.executable, "-m", "mypy", "right.py", "wrong.py"]
    env = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    found = {"right.py": set(), "wrong.py": set()}
    for line in done.stdout.splitlines():
        if ": error: " in line:
            file, number, *_ = line.split(":")
            found[file].add(int(number))
    marked = {i for i, line in enumerate(wrong.splitlines(), 1) if line.endswith("# error")}
    return found, marked, done.stdout


def test_a_project_passes_a_strict_check(checked):
    found, _, said = checked
    assert not found["right.py"], said


def test_mistakes_of_a_project_are_found(checked):
    found, marked, said = checked
    assert found["wrong.py"] == marked and len(marked) == 9, said


def test_the_arguments_that_adapters_take_are_those_of_record():
    named = {name: record.__annotations__[name] for name in record.__kwdefaults__}
    assert Arguments.__annotations__ == named
