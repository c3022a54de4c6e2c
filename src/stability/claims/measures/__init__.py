"""What claims measure: one public function each, found by looking.

A measure gets the rows of one seed in one setting and returns its number (or a text). It asks for
tables by the names of its parameters, ``layers``, ``steps``, ``probes``, ``runs``; its other
parameters are settings, which a claim gives under ``with:``. Where a seed cannot answer, it raises
`Unmeasured` with the reason.

l counts blocks passed; fits use the outputs of the blocks, 1 to L, and never the embedding's.
"""

import inspect
import pkgutil
from collections.abc import Callable
from importlib import import_module

from stability.claims.measures._rows import Unmeasured
from stability.results.schema import TABLES

__all__ = ["FRAMES", "Measure", "Unmeasured", "measures", "settings", "tables"]

FRAMES = (*TABLES, "runs")

Measure = Callable[..., float | str]


def measures() -> dict[str, Measure]:
    """Name -> function of every measure, alphabetically."""
    found: dict[str, Measure] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name.startswith("_"):
            continue
        module = import_module(f"{__name__}.{info.name}")
        for name, value in vars(module).items():
            own = inspect.isfunction(value) and value.__module__ == module.__name__
            if own and not name.startswith("_"):
                found[name] = value
    return dict(sorted(found.items()))


def tables(measure: Measure) -> list[str]:
    """The tables that a measure reads."""
    return [name for name in inspect.signature(measure).parameters if name in FRAMES]


def settings(measure: Measure) -> dict[str, inspect.Parameter]:
    """What a claim may set of a measure, by name."""
    parameters = inspect.signature(measure).parameters
    return {name: p for name, p in parameters.items() if name not in FRAMES}
