"""Final loss by learning rate, of each method: where it learns, and how wide that range is."""

import math
from collections import defaultdict
from itertools import cycle
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from stability.difference.methods import Method, Methods
from stability.figures.drawing import scales, style
from stability.figures.drawing.page import Page
from stability.figures.drawing.style import drawn

SHIFT = 1.03
"""Factor on the learning rate between two methods of a panel."""
TOGETHER = len(style.COLOURS)
"""So many methods share a panel; of more, each has one of its own, with all in grey."""


def numbers(methods: Methods) -> pd.DataFrame:
    """What is drawn: a row for each method and learning rate."""
    return pd.DataFrame(
        {
            "setting": m.setting,
            "method": m.label,
            "lr": p.lr,
            "loss": p.loss.mean,
            "low": p.loss.low,
            "high": p.loss.high,
            "diverged": p.diverged,
            "seeds": p.seeds,
        }
        for m in methods.methods
        for p in m.points
    )


class Panel(NamedTuple):
    title: str
    curves: dict[str, Method]
    """Name in the legend -> what is drawn."""


@drawn
def draw(methods: Methods, width: float = 6.75) -> Figure:
    """A panel for each setting; where methods are many, one for each with a line per setting."""
    many = max(map(len, methods.settings.values())) > TOGETHER
    panels = _of_methods(methods) if many else _of_settings(methods)
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    looks = cycle([style.INK] if len(names) == 1 else style.COLOURS)
    colours = dict(zip(names, looks, strict=False))
    columns = min(len(panels), 5 if many else 2)
    page = Page(len(panels), columns, width, min_height=1.1)
    for number, (ax, panel) in enumerate(zip(page.axes, panels, strict=True)):
        for other in methods.methods if many else ():
            ax.plot(*_means(other), color=style.PALE, linewidth=0.6, gid="other", zorder=1)
        for i, (name, method) in enumerate(panel.curves.items()):
            _curve(ax, method, colours[name], SHIFT ** (i - (len(panel.curves) - 1) / 2))
        _axes(ax, methods, few=many)
        ax.set_title(panel.title, pad=3, fontsize=style.SMALL if many else style.FONT)
        if number % columns == 0:
            ax.set_ylabel("final loss")
        elif many:
            ax.tick_params(labelleft=False)
        if number >= len(panels) - columns:
            ax.set_xlabel("learning rate")
    if len(names) > 1:
        page.legends = [[_handle(name, colour) for name, colour in colours.items()]]
    page.notes = _notes(methods, many)
    return page.close()


def _of_settings(methods: Methods) -> list[Panel]:
    return [
        Panel(setting, {method.label: method for method in own})
        for setting, own in methods.settings.items()
    ]


def _of_methods(methods: Methods) -> list[Panel]:
    found: dict[str, dict[str, Method]] = defaultdict(dict)
    for method in methods.methods:
        found[method.label][method.setting] = method
    return [Panel(label, own) for label, own in found.items()]


def _means(method: Method) -> tuple[list[float], list[float]]:
    return [p.lr for p in method.points], [p.loss.mean for p in method.points]


def _curve(ax: Axes, method: Method, colour: str, beside: float) -> None:
    """Means with their intervals, at learning rates times ``beside``; crosses where seeds diverged.

    So that intervals do not hide each other, methods stand beside each other.
    """
    rates, mean = _means(method)
    x = np.array(rates) * beside
    ax.plot(x, mean, color=colour, marker="o", markersize=2.5, gid="mean")
    ends = np.array([(p.loss.low, p.loss.high) for p in method.points])
    ax.vlines(x, *ends.T, color=colour, linewidth=0.7, gid="interval")
    bad = [i for i, p in enumerate(method.points) if p.diverged]
    ax.plot(
        x[bad], np.array(mean)[bad], "x", color=style.BAD, markersize=5, gid="diverged", zorder=3
    )


def _limits(methods: Methods) -> tuple[float, float]:
    """Around all means, and the interval at each method's best learning rate."""
    means = [p.loss.mean for m in methods.methods for p in m.points]
    shown = [v for v in (*means, *(m.best.loss.low for m in methods.methods)) if math.isfinite(v)]
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    pad = 0.06 * (high - low) or 0.1
    return low - pad, high + pad


def _axes(ax: Axes, methods: Methods, few: bool) -> None:
    """Losses upwards; across the learning rates that were swept, or only the ends of them."""
    rates = sorted({p.lr for m in methods.methods for p in m.points if p.lr > 0})
    ax.set_ylim(*_limits(methods))
    if rates:
        ax.set_xscale("log")
        ax.set_xlim(*scales.log_limits(rates))
        shown = [rates[0], rates[-1]] if few else rates
        ax.set_xticks(shown, [f"{rate:g}" for rate in shown])
        ax.xaxis.set_minor_locator(NullLocator())


def _handle(label: str, colour: str) -> Line2D:
    return Line2D([], [], color=colour, marker="o", markersize=2.5, label=label)


def _notes(methods: Methods, many: bool) -> list[str]:
    seeds = max(p.seeds for m in methods.methods for p in m.points)
    said = [f"Mean over up to {seeds} seeds; bar: its 95% interval."] if seeds > 1 else []
    said += ["Grey: all methods."] if many else []
    if any(m.diverged for m in methods.methods):
        said.append("Cross: a seed diverged, and counts with its loss at init.")
    return [" ".join(said), *methods.remarks]
