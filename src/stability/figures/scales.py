"""Axes that stay readable whatever the numbers: 96 layers, 60 decades, nothing but zeros."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter, NullLocator


def log_limits(values: Any, guides: Sequence[float] = ()) -> tuple[float, float]:
    """Limits of a log axis around positive values, at least a decade apart."""
    numbers = np.asarray([*np.ravel(np.asarray(values, float)), *guides], float)
    numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
    if not len(numbers):
        return 0.1, 10.0
    low, high = np.log10(numbers.min()), np.log10(numbers.max())
    pad = max(0.06 * (high - low), (1 - (high - low)) / 2, 0.05)
    return 10.0 ** max(low - pad, -307), 10.0 ** min(high + pad, 307)


def log_y(ax: Axes, limits: tuple[float, float]) -> None:
    """A log axis with few labels, all of them powers of ten."""
    ax.set_yscale("log")
    ax.set_ylim(*limits)
    decades = np.log10(limits[1]) - np.log10(limits[0])
    ax.yaxis.set_major_locator(LogLocator(numticks=6))
    ax.yaxis.set_minor_formatter(NullFormatter())
    if decades > 3:
        ax.yaxis.set_minor_locator(NullLocator())


def layer_x(ax: Axes, lengths: Sequence[int], embedding: bool, labelled: bool = True) -> None:
    """The axis of blocks passed; a log axis where lines of very different length share a panel."""
    longest = max(lengths)
    if longest >= 3 * min(lengths) and len(set(lengths)) > 1:
        ax.set_xscale("log")
        ax.set_xlim((0.42 if embedding else 0.9), longest * 1.15)
        inner = sorted({n for n in lengths if n > 1})
        while len(inner) > 5:
            inner = [inner[0], *inner[1:-1:2], inner[-1]]
        ticks = [*([0.5] if embedding else []), 1, *inner]
        ax.xaxis.set_major_locator(FixedLocator(ticks))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticks(ticks, [*(["0"] if embedding else []), "1", *map(str, inner)])
    else:
        pad = 0.03 * longest + 0.2
        ax.set_xlim((0 if embedding else 1) - pad, longest + pad)
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
