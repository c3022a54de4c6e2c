"""Mutation tests: how many small errors in src/stability do the tests notice?

    python tests/mutants.py --count 300 --seed 0 --only theory/ parts/norms.py

A mutant is the package with one error of `mutations` in it. It is killed when a test file fails or
takes far longer than without the error; it survives when the `NEAREST` test files pass. The nearest
is the file that carries the name of the module or of its package, then come those that import the
module, then those that import what imports it; of equals the one that imports least.

Everything runs in a temporary copy of the checkout. The sample depends on the seed alone.
"""

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from mutations import Mutation, mutations

NEAREST = 4
"""Test files that a mutant has to survive."""

TIMES, SECONDS = 5, 10
"""How long a test file may take: so many times what it takes without an error, and seconds more."""

OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not slow")
PACKAGE = Path("src", "stability")
NUMBERS = ("claims", "model", "parts", "recording", "results", "theory", "training")
NUMBERS_TOO = ("config/identity.py", "config/rules.py")
"""What computes numbers, verdicts, identities and files; all else is the rest."""

NOT_COPIED = (".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "outputs")


class Mutant(NamedTuple):
    """A module with one error in it; its path is relative to the package."""

    path: str
    mutation: Mutation

    @property
    def computes(self) -> bool:
        """Whether its module computes numbers, verdicts, identities or files."""
        return self.package in NUMBERS or self.path in NUMBERS_TOO

    @property
    def package(self) -> str:
        return self.path.partition("/")[0]

    @property
    def place(self) -> str:
        return f"{self.path}:{self.mutation.line}"


def sample(sources: dict[str, str], only: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Mutants drawn from all whose place begins as wanted, in the order of their places."""
    every = [Mutant(path, m) for path, source in sources.items() for m in mutations(source)]
    wanted = [i for i, mutant in enumerate(every) if mutant.place.startswith(tuple(only))]
    drawn = random.Random(seed).sample(wanted, min(count, len(wanted)))
    return [every[i] for i in sorted(drawn)]


class Imports:
    """Which modules the tests of a checkout import.

    Args:
        root: the checkout.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.tests = root, root / "tests"
        places = [(file, root / p) for p in ("src", "tests") for file in (root / p).rglob("*.py")]
        names = {_dotted(file.relative_to(place)): file for file, place in places}
        found = {file: _imported(file) for file, _ in places}
        self._of = {file: {names[n] for n in found[file] & names.keys()} for file in found}

    def nearest(self, path: str, name: str = "") -> list[str]:
        """The test files that speak of a module, the nearest first; it has its file's name."""
        module, ranks = self.root / PACKAGE / path, []
        package = path.partition("/")[0]
        name = name or module.stem
        for test in self.tests.rglob("test_*.py"):
            distance = self._distance(test, module)
            if distance is not None:
                named = test.stem.removeprefix("test_") in (name, module.parent.name, package)
                beside = test.parent.name == module.parent.name
                place = test.relative_to(self.root).as_posix()
                ranks.append((not named, distance, not beside, len(self._of[test]), place))
        if not ranks and module.name != "__init__.py":  # found by looking: its package imports it
            return self.nearest((Path(path).parent / "__init__.py").as_posix(), name)
        return [test for *_, test in sorted(ranks)[:NEAREST]]

    def _distance(self, test: Path, module: Path) -> int | None:
        """Imports that lead from a test to a module; helper modules of the tests do not count."""
        front, seen, distance = self._with_helpers(test), set[Path](), 0
        while front:
            seen |= front
            front = {found for file in front for found in self._of[file]} - seen
            distance += 1
            if module in front:
                return distance
        return None

    def _with_helpers(self, test: Path) -> set[Path]:
        files, new = set[Path](), {test}
        while new:
            files |= new
            found = {found for file in new for found in self._of[file]}
            new = {file for file in found if file.is_relative_to(self.tests)} - files
        return files


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


class Trial:
    """Tries mutants, one at a time.

    Args:
        root: a copy of the checkout; each mutant is written into it and taken out again.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.package = root, root / PACKAGE
        self.imports = Imports(root)
        self.seconds: dict[str, float] = {}
        self._writes = 0

    @cached_property
    def sources(self) -> dict[str, str]:
        files = sorted(self.package.rglob("*.py"))
        return {f.relative_to(self.package).as_posix(): f.read_text("utf-8") for f in files}

    def killer(self, mutant: Mutant) -> str | None:
        """The first test file that notices the error, if any does."""
        nearest = self.imports.nearest(mutant.path)
        for tests in (nearest[:1], nearest[1:]):
            for test in sorted(tests, key=self._usual):
                if not self._passes(test, mutant):
                    return test
        return None

    def _usual(self, test: str) -> float:
        """The seconds that a test file takes without any error."""
        if test not in self.seconds:
            start = time.monotonic()
            if not (self._run(test, None) or self._run(test, None)):
                raise SystemExit(f"{test} fails without any error, twice")
            self.seconds[test] = time.monotonic() - start
        return self.seconds[test]

    def _passes(self, test: str, mutant: Mutant) -> bool:
        self._write(mutant.path, mutant.mutation.source)
        try:
            return self._run(test, TIMES * self._usual(test) + SECONDS)
        finally:
            self._write(mutant.path, self.sources[mutant.path])

    def _write(self, path: str, source: str) -> None:
        file = self.package / path
        file.write_text(source, "utf-8")
        self._writes += 1  # a time of its own: Python tells stale compiled files by whole seconds
        os.utime(file, (self._writes, self._writes))

    def _run(self, test: str, timeout: float | None) -> bool:
        """Whether a test file passes in time; what it started ends with it."""
        command = [sys.executable, "-m", "pytest", *OPTIONS, test]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(self.root / "src"),
            "PYTHONPYCACHEPREFIX": str(self.root / "compiled"),
        }
        with subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                return process.wait(timeout) == 0
            except subprocess.TimeoutExpired:
                return False
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


Results = Sequence[tuple[Mutant, str | None]]
"""Mutants, each with the test file that killed it."""


def rate(results: Results) -> float:
    """The share that was killed, in per cent."""
    return 100 * sum(killer is not None for _, killer in results) / max(len(results), 1)


def table(results: Results) -> Iterator[str]:
    """Lines that say how many were killed, by group and by package."""
    for computes, name in ((True, "numbers, verdicts, identities, files"), (False, "the rest")):
        group = [result for result in results if result[0].computes == computes]
        if group:
            yield f"{name:40} {rate(group):3.0f}% of {len(group):4} killed"
        for package in sorted({mutant.package for mutant, _ in group}):
            of_package = [result for result in group if result[0].package == package]
            yield f"  {package:38} {rate(of_package):3.0f}% of {len(of_package):4}"


def main(arguments: Sequence[str] | None = None, root: Path = Path(__file__).parents[1]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="chooses them")
    parser.add_argument("--only", nargs="+", default=[""], help="how path:line begins")
    parser.add_argument("--at-least", type=float, default=0, help="per cent; fewer end with 1")
    args = parser.parse_args(arguments)
    results: list[tuple[Mutant, str | None]] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "checkout"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*NOT_COPIED))
        trial = Trial(copy)
        drawn = sample(trial.sources, args.only, args.count, args.seed)
        for number, mutant in enumerate(drawn, 1):
            results.append((mutant, trial.killer(mutant)))
            fate = f"killed by {results[-1][1]}" if results[-1][1] else "SURVIVES"
            print(
                f"{number}/{len(drawn)} {mutant.place}: {mutant.mutation.change}: {fate}",
                flush=True,
            )
    print("", *table(results), "", sep="\n")
    for mutant in (mutant for mutant, killer in results if killer is None):
        print(f"{PACKAGE.as_posix()}/{mutant.place}: {mutant.mutation.change}")
    return int(rate(results) < args.at_least)


if __name__ == "__main__":
    sys.exit(main())
