"""The steps of CONTRIBUTING.md for a new statistic, made in a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stability.results.parquet import Writer

ROOT = Path(__file__).parents[2]
SECTION = (
    (ROOT / "CONTRIBUTING.md").read_text().partition("## A statistic")[2].partition("\n## ")[0]
)
STEPS = {
    name: [
        textwrap.dedent(code).strip() for code in re.findall(r"```python\n(.*?)\n +```", body, re.S)
    ]
    for name, body in re.findall(r"^\d\. `(\S+\.py)`(.*?)(?=^\d\. |\Z)", SECTION, re.M | re.S)
}
"""File -> what the section adds to it: a count and a value."""
BEFORE = {
    "src/stability/results/statistics.py": '    Field(\n        "zeros"',
    "tests/slow_statistics.py": '        "zeros": int(',
}
"""File -> the beginning of the line above which its additions go."""

RECORD = """
import torch, stability
from stability.results.parquet import read
from pathlib import Path

model = torch.nn.Sequential(torch.nn.Linear(4, 4))
weight = model[0].weight.detach().double()
negative, cubic_mean = int((weight < 0).sum()), weight.abs().pow(3).mean() ** (1 / 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with stability.record(model, "run", sites=r"(\\d+)"):
    model(torch.ones(2, 3, 4)).sum().backward()
    optimizer.step()
rows = stability.load("run").query("kind == 'weight'").set_index("site").loc["weight"]
assert rows["negative"] == negative
assert abs(rows["cubic_mean"] / cubic_mean - 1) < 1e-12
for name in ("negative", "cubic_mean"):
    assert read(Path("old"), "layers")[name].to_pylist() == [None]
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The package and the tests of statistics, with the new one in them."""
    made = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src" / "stability", made / "src" / "stability")
    (made / "tests").mkdir()
    for name in ("slow_statistics.py", "recording/test_stats.py"):
        shutil.copy(ROOT / "tests" / name, made / "tests")
    for name, additions in STEPS.items():
        text = (made / name).read_text()
        assert text.count(BEFORE[name]) == 1
        indent = BEFORE[name][: -len(BEFORE[name].lstrip())]
        added = "".join(textwrap.indent(f"{code},\n", indent) for code in additions)
        (made / name).write_text(text.replace(BEFORE[name], added + BEFORE[name]))
    return made


def python(copy: Path, *args: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(copy / "src"), str(copy / "tests")])}
    command = [sys.executable, *args]
    return subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)


def test_it_costs_one_field_and_its_twin():
    assert list(STEPS) == list(BEFORE)
    assert [len(additions) for additions in STEPS.values()] == [2, 2]
    assert all(code.startswith("Field(") for code in STEPS["src/stability/results/statistics.py"])


def test_a_new_statistic_is_measured_merged_and_checked_against_its_twin(copy):
    chosen = "definition or chunks or merge or many or non_finite"
    done = python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, "tests")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("right", "wrong"), [("held < 0", "held <= 0"), ("y) ** 3", "y) ** 2")])
def test_a_twin_that_differs_from_the_new_statistic_is_noticed(copy, right, wrong):
    twin = copy / "tests" / "slow_statistics.py"
    text = twin.read_text()
    assert text.count(right) == 1
    twin.write_text(text.replace(right, wrong))
    done = python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "merge", "tests")
    twin.write_text(text)
    assert done.returncode == 1, done.stdout


def test_a_new_statistic_is_a_column_of_new_runs_and_null_in_old_ones(copy):
    writer = Writer(copy / "old", "layers", {})
    row = {"run": "0", "step": 0, "layer": 0, "sublayer": "mlp", "site": "w", "kind": "act"}
    writer.append({name: [value] for name, value in (row | {"numel": 1}).items()})
    writer.close()
    done = python(copy, "-c", RECORD)
    assert done.returncode == 0, done.stderr
