"""The figures: one module each, found by looking, so that a new file is a new figure.

A figure module has a docstring whose first line is its title, and

- ``TABLE``, ``COLUMNS``, ``WHERE``: what `frames.sweep_rows` must read for it; ``STEPS``: ``ends``
  where each run's first and last recorded step suffice, ``all`` where training's course is drawn;
- ``data(rows) -> rows``: from recorded rows to the numbers that are drawn, which become the csv;
  raises `select.CannotFill` with the reason where the sweep lacks them;
- ``draw(rows, width) -> Figure``: from those numbers to the figure; one that takes ``theory`` too
  gets the numbers that ``data`` makes of the infinite-width theory of the same runs at init.

Rows are `SweepRows`: a frame, with the axes of the sweep, the labels of their values and remarks.
In a notebook::

    from stability.figures import variance
    from stability.results.frames import sweep_rows

    variance.draw(variance.data(sweep_rows("outputs/demo", columns=variance.COLUMNS)))
"""

import pkgutil
from importlib import import_module
from types import ModuleType


def modules() -> dict[str, ModuleType]:
    """Name -> module of every figure, alphabetically."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.ispkg)
    return {name: import_module(f"{__name__}.{name}") for name in names}
