"""What an installed wheel carries."""

import re
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
import yaml

from stability.__main__ import COMMANDS
from stability.shell import DISTRIBUTION

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.mark.parametrize("folder", ["conf", "experiments"])
def test_a_wheel_carries_every_config_and_experiment(wheel, folder):
    files = {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*") if p.is_file()}
    assert files
    assert {f"stability/_{name}" for name in files} <= set(wheel.namelist())


def test_a_wheel_is_typed_and_carries_nothing_else(wheel):
    names = wheel.namelist()
    assert "stability/py.typed" in names
    assert {n.split("/")[0].split("-")[0] for n in names} == {"stability", "gradient_stability"}


def test_commands_are_installed(wheel):
    (entry,) = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    text = wheel.read(entry).decode()
    for script, target in PROJECT["scripts"].items():
        assert f"{script} = {target}" in text


def test_every_dependency_has_an_exact_release_in_the_constraints():
    def bare(name: str) -> str:
        return re.split(r"[<>=\[; ]", name)[0].lower().replace("_", "-")

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pinned)
    needed = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
    assert {bare(n) for n in needed} - {"gradient-stability"} <= {bare(line) for line in pinned}


def test_what_develops_and_tests_installs_every_extra():
    extras = set(PROJECT["optional-dependencies"]) - {"dev"}
    own = f"{PROJECT['name']}["
    (needed,) = [n for n in PROJECT["optional-dependencies"]["dev"] if n.startswith(own)]
    assert set(needed.removeprefix(own).removesuffix("]").split(",")) == extras


def test_every_command_has_a_script():
    assert {f"stability-{name}" for name in COMMANDS} | {"stability"} == set(PROJECT["scripts"])


def test_the_version_and_the_licence_are_said_alike(wheel):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    released = f"## {PROJECT['version']} ({citation['date-released']})"
    assert released in (ROOT / "CHANGELOG.md").read_text()
    assert PROJECT["name"] == DISTRIBUTION
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
