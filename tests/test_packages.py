"""A package imports only what lies below it; docs/design.md says the order in one line."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stability.__main__ import COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "stability"
DESIGN = (ROOT / "docs" / "design.md").read_text()

ORDER = re.search(r"^    (shell < .+ < commands)$", DESIGN, re.M)
assert ORDER, "docs/design.md lacks the line that says the order"
LEVELS = [level.split(", ") for level in ORDER[1].split(" < ")]
LEVEL = {name: number for number, level in enumerate(LEVELS) for name in level}
FILES = [p for p in sorted(PACKAGE.rglob("*.py")) if p != PACKAGE / "__init__.py"]

HYDRA = {"hydra", "omegaconf"}
ANALYSIS = ("shell", "config", "results", "theory", "figures", "claims", "difference", "web")
"""What plotting and verdicts use: starts without torch and without hydra."""


def package_of(path: Path) -> str:
    """The package or top-level module that a file belongs to; every command is ``commands``."""
    top = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return top if top in LEVEL else "commands"


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, lazily or for types as well."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imported_packages(path: Path) -> set[str]:
    found = set()
    for name in imports(path):
        head, *rest = name.split(".")
        if head == "stability" and (PACKAGE / rest[0]).is_dir():
            found.add(rest[0])
        elif head == "stability" and (PACKAGE / f"{rest[0]}.py").exists():
            found.add(rest[0] if rest[0] in LEVEL else "commands")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_a_package_imports_only_what_lies_below_it(path):
    own = package_of(path)
    wrong = {p for p in imported_packages(path) - {own} if LEVEL[p] >= LEVEL[own]}
    assert not wrong, f"{own} must not import {sorted(wrong)}: {ORDER[1]}"


def test_the_order_names_every_package():
    folders = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    assert folders | {"shell", "commands"} == set(LEVEL)


def test_the_table_of_packages_and_the_tree_agree():
    table = DESIGN.partition("## The packages")[2].partition("Beside `src/stability/`")[0]
    rows = re.findall(r"^\| `(\w+)/` \|", table, re.M)
    assert set(rows) == set(LEVEL) - {"shell", "commands"}


def test_every_package_says_what_one_finds_in_it():
    for folder in PACKAGE.rglob("__init__.py"):
        assert (ast.get_docstring(ast.parse(folder.read_text())) or "").strip(), folder


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_only_the_command_line_imports_hydra(path):
    heads = {name.partition(".")[0] for name in imports(path)}
    assert package_of(path) == "cli" or not heads & HYDRA


@pytest.mark.parametrize("name", [*ANALYSIS, "plot"])
def test_the_analysis_side_imports_neither_torch_nor_hydra(name):
    code = f"""
import importlib, pkgutil, sys
module = importlib.import_module("stability.{name}")
for inner in pkgutil.walk_packages(getattr(module, "__path__", []), module.__name__ + "."):
    importlib.import_module(inner.name)
heavy = {{"torch", "hydra", "omegaconf", "hydra_plugins"}} & set(sys.modules)
assert not heavy, f"{name} imports {{heavy}}"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_placements_inits_and_the_public_face_need_no_torch():
    code = """
import sys
import stability, stability.parts.placements, stability.parts.inits
assert callable(stability.load) and "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_command_is_a_module_that_can_be_run():
    for name in COMMANDS:
        found = importlib.util.find_spec(f"stability.{name}")
        assert found is not None
        main = Path(str(found.origin))
        main = main.with_name("__main__.py") if main.name == "__init__.py" else main
        assert '__name__ == "__main__"' in main.read_text()


FRAMEWORKS = ("transformers", "accelerate", "lightning", "peft", "tensorboard", "wandb")


def test_recording_imports_no_framework():
    code = f"""
import sys
import stability
assert callable(stability.record)
assert not {set(FRAMEWORKS)} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "framework", "extra"),
    [("hf", "transformers", "hf"), ("lightning", "lightning.pytorch", "lightning")],
)
def test_an_adapter_without_its_framework_says_what_to_install(name, framework, extra):
    code = f"""
import sys
sys.modules["{framework}"] = None
import stability
try:
    stability.{name}
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"pip install 'gradient-stability[{extra}]'" in done.stdout


def test_an_adapter_is_found_without_an_import_of_its_own():
    pytest.importorskip("transformers")
    code = "import stability; assert stability.hf.Record and 'hf' in dir(stability)"
    subprocess.run([sys.executable, "-c", code], check=True)
