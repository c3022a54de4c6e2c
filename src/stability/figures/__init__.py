"""The figures: every module of this package is one, so that adding a file adds a figure.

A figure module has a docstring whose first line is its title, and

- ``TABLE``, ``COLUMNS``, ``WHERE``: what `frames.sweep_rows` must read for it; ``STEPS``: ``ends``
  reads only the first and last recorded step of each run, ``all`` every recorded step;
- ``data(rows) -> rows``: from recorded rows to the numbers that are drawn, which become the csv;
  raises `select.CannotDraw` with the reason where the sweep lacks them;
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
