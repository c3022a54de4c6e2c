"""What claims measure: one public function each, found by looking.

A measure gets the rows of one seed in one setting and returns its number (or a text). It asks for
tables by the names of its parameters, ``layers``, ``steps``, ``probes``, ``runs``; its other
parameters are settings, which a claim gives under ``with:``. Their annotations say what a claim may
give, that of the result whether it is a number or a text. Where a seed cannot answer, the measure
raises `Unmeasured` with the reason.

l counts blocks passed; fits use the outputs of the blocks, 1 to L, and never the embedding's.
"""

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TypeAlias

from stability.claims.measures._rows import Unmeasured
from stability.claims.yaml_types import ConfigKey
from stability.results.schema import TABLES

__all__ = ["FRAMES", "Measure", "Settings", "Unmeasured", "measures"]

FRAMES = (*TABLES, "runs")

Settings: TypeAlias = Mapping[str, object]
"""Parameter of a measure -> what a claim sets it to."""


@dataclass(frozen=True)
class Measure:
    """A function of one seed's rows, and what its signature says."""

    name: str
    function: Callable[..., float | str]
    """A bool is a float here: what is true or false of a seed."""

    def __call__(self, **given: object) -> float | str:
        return self.function(**given)

    @property
    def tables(self) -> list[str]:
        """The tables that it reads."""
        return [name for name in inspect.signature(self.function).parameters if name in FRAMES]

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """What a claim may set, by name."""
        parameters = inspect.signature(self.function).parameters
        return {name: p for name, p in parameters.items() if name not in FRAMES}

    @property
    def required(self) -> list[str]:
        """The settings that a claim must give."""
        return [name for name, p in self.settings.items() if p.default is p.empty]

    @property
    def gives_text(self) -> bool:
        return inspect.signature(self.function).return_annotation is str

    @property
    def meaning(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    def config_keys(self, given: Settings) -> list[str]:
        """The settings given that are keys of a config: axes along which runs are compared."""
        axes = [name for name, p in self.settings.items() if p.annotation is ConfigKey]
        return [str(given[name]) for name in axes if name in given]


@cache
def measures() -> dict[str, Measure]:
    """Every measure by its name, alphabetically."""
    found: dict[str, Measure] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name.startswith("_"):
            continue
        module = import_module(f"{__name__}.{info.name}")
        for name, value in vars(module).items():
            own = inspect.isfunction(value) and value.__module__ == module.__name__
            if own and not name.startswith("_"):
                found[name] = Measure(name, value)
    return dict(sorted(found.items()))
