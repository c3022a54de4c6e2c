"""Imports go downhill only. The floors stand in the table of docs/design.md, and nowhere else."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
ROW = re.compile(r"^\| `(?P<module>[\w/]+(?:\.py)?/?)` \| (?P<floor>\d+)(?P<side>a?) \|", re.M)


def unit(path: Path) -> str:
    """The row a file belongs to: its module, or the folder it lies in."""
    parts = path.relative_to(SRC).parts
    if parts[0] != "stability":
        return f"{parts[0]}/"
    return parts[1] if len(parts) == 2 else f"{parts[1]}/"


FLOORS = {
    m["module"]: (place, int(m["floor"]), m["side"])
    for place, m in enumerate(ROW.finditer((ROOT / "docs" / "design.md").read_text()))
}
FILES = [p for p in sorted(SRC.rglob("*.py")) if unit(p) != "__init__.py"]


def imported(path: Path) -> set[str]:
    """Rows that a file imports, lazily or for types as well."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            head, *rest = name.split(".")
            if head == "hydra_plugins":
                found.add("hydra_plugins/")
            elif head == "stability" and rest and rest[0] != "__version__":
                folder = (SRC / "stability" / rest[0]).is_dir()
                found.add(f"{rest[0]}/" if folder else f"{rest[0]}.py")
    return found


def may_import(upper: str, lower: str) -> bool:
    if upper == lower:
        return upper.endswith("/")
    place, floor, side = FLOORS[upper]
    below, ground, other = FLOORS[lower]
    if (ground, below) > (floor, place):
        return False
    # The staircases share the ground floors; a command, at the top of the first, may use both.
    return side == other or ground <= 1 or (side == "" and floor >= 7)


def test_the_table_and_the_tree_agree():
    assert set(FLOORS) == {unit(p) for p in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_a_module_imports_only_from_lower_floors(path):
    rows = imported(path) | {unit(path)}
    assert rows <= set(FLOORS), f"no row in docs/design.md: {sorted(rows - set(FLOORS))}"
    wrong = {lower for lower in imported(path) if not may_import(unit(path), lower)}
    assert not wrong, f"{unit(path)} may not import {sorted(wrong)}"


def test_the_analysis_side_imports_neither_torch_nor_hydra():
    side = [m.removesuffix(".py") for m, (_, floor, a) in FLOORS.items() if a or floor == 0]
    assert {"placements", "theory", "frames", "figures/", "plot"} <= set(side)
    code = f"""
import importlib, pkgutil, sys
for row in {side}:
    module = importlib.import_module("stability." + row.strip("/"))
    for inner in pkgutil.iter_modules(getattr(module, "__path__", [])):
        importlib.import_module(module.__name__ + "." + inner.name)
    heavy = {{"torch", "hydra", "hydra_plugins"}} & set(sys.modules)
    assert not heavy, f"{{row}} imports {{heavy}}"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
