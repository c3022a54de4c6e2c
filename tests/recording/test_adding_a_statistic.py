"""The steps of CONTRIBUTING.md for a new statistic, made in a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stability.results.parquet import Writer

ROOT = Path(__file__).parents[2]
SECTION = (
    (ROOT / "CONTRIBUTING.md").read_text().partition("## A statistic")[2].partition("\n## ")[0]
)
STEPS = re.findall(r"^\d\. `(\S+\.py)`.*?```python\n(.*?)\n +```", SECTION, re.M | re.S)
BEFORE = {
    "src/stability/results/statistics.py": '    Field("zeros"',
    "src/stability/recording/stats.py": '        "zeros": zeros',
    "tests/slow_statistics.py": '        "zeros": int(',
}
"""File -> the beginning of the line above which the step's line goes."""

RECORD = """
import torch, stability
from stability.results.parquet import read
from pathlib import Path

model = torch.nn.Sequential(torch.nn.Linear(4, 4))
wanted = int((model[0].weight < 0).sum())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with stability.record(model, "run", sites=r"(\\d+)"):
    model(torch.ones(2, 3, 4)).sum().backward()
    optimizer.step()
rows = stability.load("run").query("kind == 'weight'").set_index("site")["negative"]
assert rows["weight"] == wanted
assert read(Path("old"), "layers")["negative"].to_pylist() == [None]
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The package and the tests of statistics, with the new one in them."""
    made = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src" / "stability", made / "src" / "stability")
    (made / "tests").mkdir()
    for name in ("slow_statistics.py", "recording/test_stats.py"):
        shutil.copy(ROOT / "tests" / name, made / "tests")
    for name, line in STEPS:
        text = (made / name).read_text()
        assert text.count(BEFORE[name]) == 1
        indent = BEFORE[name][: -len(BEFORE[name].lstrip())]
        new = f"{indent}{line.strip()},\n{BEFORE[name]}"
        (made / name).write_text(text.replace(BEFORE[name], new))
    return made


def python(copy: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(copy / "src"), str(copy / "tests")])}
    command = [sys.executable, *args]
    return subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)


def test_it_costs_one_field_one_line_and_its_twin():
    assert [name for name, _ in STEPS] == list(BEFORE)
    assert all("\n" not in line for _, line in STEPS)


def test_a_new_statistic_is_measured_merged_and_checked_against_its_twin(copy):
    chosen = "definition or chunks or merge or many or non_finite"
    done = python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, "tests")
    assert done.returncode == 0, done.stdout
    twin = copy / "tests" / "slow_statistics.py"
    right = twin.read_text()
    twin.write_text(right.replace("held < 0", "held <= 0"))
    done = python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "merge", "tests")
    twin.write_text(right)
    assert done.returncode == 1, "a twin that says otherwise must be noticed"


def test_a_new_statistic_is_a_column_of_new_runs_and_null_in_old_ones(copy):
    writer = Writer(copy / "old", "layers", {})
    row = {"run": "0", "step": 0, "layer": 0, "sublayer": "mlp", "site": "w", "kind": "act"}
    writer.append({name: [value] for name, value in (row | {"numel": 1}).items()})
    writer.close()
    done = python(copy, "-c", RECORD)
    assert done.returncode == 0, done.stderr
