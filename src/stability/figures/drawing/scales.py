"""Axes that stay readable whatever the numbers: 96 layers, 60 decades, nothing but zeros."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from stability.figures.drawing.view import XScale

MIN_DECADES = 0.6
"""A log axis spans at least a factor of 4, so that noise does not look like a trend."""

WIDEST = 200.0
"""Decades on either side of 1 that an axis shows; beyond, ticks overflow. fp64 can leave it."""


def log_limits(values: Any, guides: Sequence[float] = ()) -> tuple[float, float]:
    """Limits of a log axis around the positive values."""
    numbers = np.asarray([*np.ravel(np.asarray(values, float)), *guides], float)
    numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
    if not len(numbers):
        return 0.1, 10.0
    low, high = np.log10(numbers.min()), np.log10(numbers.max())
    pad = max(0.06 * (high - low), (MIN_DECADES - (high - low)) / 2)
    low, high = max(low - pad, -WIDEST), min(high + pad, WIDEST)
    return (float(10**low), float(10**high)) if low < high else (10**-WIDEST, 10**WIDEST)


def linear_limits(values: Any) -> tuple[float, float]:
    """Limits of a linear axis around the finite values."""
    numbers = np.ravel(np.asarray(values, float))
    numbers = numbers[np.abs(numbers) < 10**WIDEST]
    if not len(numbers):
        return 0.0, 1.0
    low, high = float(numbers.min()), float(numbers.max())
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - pad, high + pad


def with_room(low: float, high: float, share: float) -> float:
    """The upper limit of a log axis, raised by a share of its length."""
    length = np.log10(high) - np.log10(low)
    return float(10 ** min(np.log10(high) + share * length, WIDEST))


def log_y(ax: Axes, limits: tuple[float, float]) -> None:
    """A vertical log axis."""
    ax.set_yscale("log")
    ax.set_ylim(*limits)
    log_ticks(ax.yaxis, limits)


def log_ticks(axis: Axis, limits: tuple[float, float]) -> None:
    """Few labels on a log axis: powers of ten, and 2 and 5 times them where it is short.

    Below a decade, round numbers as on a linear axis.
    """
    decades = np.log10(limits[1] / limits[0]) if limits[1] / limits[0] < 1e300 else 300
    if decades < 1:
        even = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(*limits)
        axis.set_major_locator(FixedLocator([v for v in even if v > 0]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axis.set_minor_locator(NullLocator())
    elif decades < 1.7:
        tens = 10.0 ** np.arange(np.floor(np.log10(limits[0])), np.log10(limits[1]))
        axis.set_major_locator(FixedLocator(np.outer(tens, (1, 2, 5)).ravel().tolist()))
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    else:
        axis.set_major_locator(LogLocator(numticks=6))
    axis.set_minor_formatter(NullFormatter())
    if decades > 4:
        axis.set_minor_locator(NullLocator())


def short(value: float) -> str:
    """A number for a label: 0.05, 65504, 2x10^-8."""
    if 0.01 <= value < 1e5:
        return f"{value:.5g}"
    power = int(np.floor(np.log10(value) + 1e-9))
    lead = f"{value / 10.0**power:.1f}".removesuffix(".0")
    return f"$10^{{{power}}}$" if lead == "1" else f"${lead}\\times10^{{{power}}}$"


def layer_x(ax: Axes, scale: XScale, lengths: Sequence[int], first: float) -> None:
    """The axis of blocks: l, l/L, or l on a log axis, where the embedding is drawn at 0.5.

    Args:
        ax: the panel.
        scale: `View.x`, never ``auto``.
        lengths: the last block of each line.
        first: the least l of a line, at most 1; 0 for the embedding.
    """
    if scale == "log":
        whole_x(ax, [1, *lengths], before=[0.5] if first < 1 else [])
        return
    longest = 1 if scale == "fraction" else max(lengths)
    pad = 0.03 * longest + (0.2 if scale == "layer" else 0)
    ax.set_xlim((0 if scale == "fraction" else first) - pad, longest + pad)
    if scale == "layer":
        whole_ticks(ax.xaxis)
    else:
        ax.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])


def whole_ticks(axis: Axis) -> None:
    """A few whole numbers."""
    axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


def whole_x(ax: Axes, values: Sequence[int], before: Sequence[float] = ()) -> None:
    """A horizontal log axis labelled at these whole numbers, thinned where they crowd."""
    ax.set_xscale("log")
    first, last = min([*values, *before]), max(values)
    pad = (last / first) ** 0.05
    ax.set_xlim(first / pad, last * pad)
    ticks: list[int] = []
    for value in sorted(set(values), reverse=True):
        if not ticks or np.log(ticks[-1] / value) > 0.13 * np.log(last * 1.4 / first):
            ticks.append(value)
    ax.xaxis.set_major_locator(FixedLocator([*before, *ticks]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks([*before, *ticks], [*("0" for _ in before), *map(str, ticks)])
