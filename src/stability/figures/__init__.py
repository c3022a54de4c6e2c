"""The figures: one module each, found by looking, so that a new file is a new figure.

A figure module has a docstring whose first line is its title, and

- ``TABLE``, ``COLUMNS``, ``WHERE``: what `stability.load` must read for it; ``STEPS``: ``ends``
  where each run's first and last recorded step suffice, ``all`` where training's course is drawn;
- ``data(frame) -> frame``: from the rows to the numbers that are drawn, which become the csv;
  raises `select.CannotFill` with the reason where the sweep lacks them;
- ``draw(frame, width) -> Figure``: from those numbers to the figure; one that takes ``theory`` too
  gets the numbers that ``data`` makes of the infinite-width theory of the same runs at init.

In a notebook: ``variance.draw(variance.data(stability.load(path, columns=variance.COLUMNS)))``.
"""

import pkgutil
from importlib import import_module
from types import ModuleType


def modules() -> dict[str, ModuleType]:
    """Name -> module of every figure, alphabetically."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    found = {name: import_module(f"{__name__}.{name}") for name in names}
    return {name: module for name, module in found.items() if hasattr(module, "COLUMNS")}
