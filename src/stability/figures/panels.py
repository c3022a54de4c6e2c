"""A page of panels: which axis takes colour, dash or panel; legends and notes below."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter, NullLocator

from stability.figures import style

MAX_LINES = 12
"""Lines that one panel holds; beyond, an axis of the sweep gets panels of its own."""
MAX_DASHES = 4
MAX_PANELS = 48


@dataclass(frozen=True)
class Roles:
    """What tells variants apart: colour, dash and mark, or a panel of their own."""

    colour: str | None
    dash: str | None
    facets: list[str]


def roles(frame: pd.DataFrame, without: Sequence[str] = ()) -> Roles:
    """Names take colours before numbers do; a second axis takes dashes while lines stay few."""
    axes = [a for a in style.axes_of(frame) if a not in without and frame[a].nunique() > 1]
    axes.sort(key=lambda a: style.is_number(frame, a))
    if not axes:
        return Roles(None, None, [])
    colour, *rest = axes
    lines = frame[colour].nunique()
    for axis in rest:
        n = frame[axis].nunique()
        if n <= MAX_DASHES and n * lines <= MAX_LINES:
            return Roles(colour, axis, [a for a in rest if a != axis])
    return Roles(colour, None, rest)


def facets(frame: pd.DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    """The combinations of these axes that occur, in legend order."""
    if not names:
        return [{}]
    rank = {a: {v: i for i, v in enumerate(style.levels(frame, a))} for a in names}
    seen = frame[list(names)].drop_duplicates().to_dict("records")
    return sorted(seen, key=lambda f: [rank[a].get(f[a], -1) for a in names])


def part(frame: pd.DataFrame, where: dict[str, Any]) -> pd.DataFrame:
    """Rows whose columns have these values."""
    for name, value in where.items():
        frame = frame[frame[name] == value]
    return frame


def title(frame: pd.DataFrame, where: dict[str, Any]) -> str:
    """The values of a facet as a panel's title."""
    return ", ".join(style.label(frame, axis, value) for axis, value in where.items())


def columns_for(width: float, across: int, groups: int = 1) -> int:
    """How many panels stand side by side: those of one group, or several groups of few."""
    most = 2 if width < 4 else 3 if width < 6 else 4
    if across > most:
        return next((n for n in (most, most - 1) if n > 1 and across % n == 0), most)
    return across * max(1, most // across) if groups > 3 else across


@dataclass
class Page:
    """A figure of `count` panels, and what is to stand below them."""

    count: int
    columns: int
    width: float
    aspect: float = 0.78
    least: float = 1.45
    most: float = 2.5
    figure: Figure = field(init=False)
    axes: list[Axes] = field(init=False)
    notes: list[str] = field(default_factory=list)
    legends: list[list[Artist]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = -(-self.count // self.columns)
        self.height = rows * float(
            np.clip(self.width / self.columns * self.aspect, self.least, self.most)
        )
        self.figure = Figure(figsize=(self.width, self.height), layout="constrained")
        FigureCanvasAgg(self.figure)
        grid = self.figure.subplots(rows, self.columns, squeeze=False).ravel()
        self.axes = list(grid[: self.count])
        for unused in grid[self.count :]:
            unused.remove()
        for ax in self.axes:
            ax.tick_params(labelsize=style.SMALL, width=0.5, length=2.5, pad=2)
            ax.tick_params(which="minor", width=0.4, length=1.5)

    def close(self) -> Figure:
        """Put legends and notes below the panels and make room for them."""
        wrapped = [line for n in self.notes for line in textwrap.wrap(n, int(self.width * 19.5))]
        below = 0.115 * len(wrapped) + 0.05 * bool(wrapped)
        text = "\n".join(wrapped)
        placed = []
        for handles in reversed([h for h in self.legends if h]):
            legend, height = self._fit(handles)
            placed.append((legend, below))
            below += height
        total = self.height + below
        self.figure.set_size_inches(self.width, total)
        for legend, bottom in placed:
            legend.set_bbox_to_anchor((0.5, bottom / total), self.figure.transFigure)
        if text:
            at = (0.06 / self.width, 0.04 / total)
            self.figure.text(*at, text, fontsize=6, color=style.GREY, va="bottom", linespacing=1.25)
        engine = self.figure.get_layout_engine()
        assert engine is not None
        engine.set(rect=(0, below / total, 1, 1 - below / total))  # type: ignore[call-arg]
        return self.figure

    def _fit(self, handles: list[Artist]) -> tuple[Any, float]:
        """A legend in as few rows as the width allows, and its height in inches."""
        for columns in range(min(len(handles), 8), 0, -1):
            legend = self.figure.legend(
                handles=handles,
                loc="lower center",
                ncols=columns,
                frameon=False,
                borderpad=0.1,
                borderaxespad=0.1,
                handlelength=2.4,
                columnspacing=1.2,
                labelspacing=0.3,
            )
            legend.set_in_layout(False)
            box = legend.get_window_extent(self.figure.canvas.get_renderer())  # type: ignore[attr-defined]
            if box.width <= self.width * self.figure.dpi or columns == 1:
                break
            legend.remove()
        return legend, box.height / self.figure.dpi + 0.03


def key(frame: pd.DataFrame, r: Roles) -> list[list[Artist]]:
    """Legends: one row of colours, one of dashes; nothing where nothing varies."""
    rows: list[list[Artist]] = []
    if r.colour:
        looks = marks(frame, r)
        rows.append(
            [
                Line2D([], [], label=style.label(frame, r.colour, v), **looks(v, None))
                for v in style.levels(frame, r.colour)
            ]
        )
    if r.dash:
        rows.append(
            [
                Line2D([], [], label=style.label(frame, r.dash, v), **looks(None, v))
                for v in style.levels(frame, r.dash)
            ]
        )
    return rows


def marks(frame: pd.DataFrame, r: Roles) -> Any:
    """(value of the colour axis, value of the dash axis) -> how its line looks."""
    colours = style.colours(frame, r.colour)
    names = style.slots(frame, r.colour) if r.colour else {}
    dashes = style.levels(frame, r.dash) if r.dash else []

    def looks(hue: Any, dash: Any) -> dict[str, Any]:
        place = names.get(hue, 0)
        dashed = dashes.index(dash) if dash is not None else place // len(style.COLOURS)
        mark = (dashes.index(dash) if dash is not None else None) if r.dash else place
        return {
            "color": colours.get(hue, style.GREY),
            "linestyle": style.DASHES[dashed % len(style.DASHES)],
            "marker": None if mark is None else style.MARKERS[mark % len(style.MARKERS)],
        }

    return looks


def outcome_notes(frame: pd.DataFrame) -> list[str]:
    """Every variant with diverged runs, by name: ``Post-LN, L = 96: 1 of 3 diverged``."""
    if "diverged" not in frame:
        return []
    axes = style.axes_of(frame)
    names = [a for a in axes if frame[a].nunique() > 1]
    variants = frame.drop_duplicates(axes) if axes else frame.head(1)
    bad = variants[variants["diverged"] > 0]
    said = []
    for _, v in bad.iterrows():
        who = ", ".join(style.label(frame, a, v[a]) for a in names)
        of = f"{v['diverged']} of {v['runs']} diverged"
        said.append(f"{who}: {of}" if who else of)
    if len(said) > 8:
        more = bad.iloc[8:]
        said[8:] = [f"{len(more)} more variants: {more['diverged'].sum()} of {more['runs'].sum()}"]
    return ["; ".join(said) + "."] if said else []


def remark_notes(frame: pd.DataFrame) -> list[str]:
    """What `frames.remarks` says of the runs as a whole."""
    return [f"{remark[0].upper()}{remark[1:]}." for remark in frame.attrs.get("remarks", [])]


def seed_note(frame: pd.DataFrame, centre: str, what: str = "Lines") -> list[str]:
    """What lines and bands are, where there is more than one seed."""
    most, least = int(frame["runs"].max()), int(frame["runs"].min())
    if most < 2:
        return []
    count = str(most) if most == least else f"{least} to {most}"
    bands = "; bands: their range" if what == "Lines" else ""
    return [f"{what}: {centre} of {count} seeds{bands}."]


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
