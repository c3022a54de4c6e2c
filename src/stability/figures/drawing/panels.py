"""A page of panels, with legends and notes below them."""

import textwrap
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from stability.figures.drawing import style

MAX_PANELS = 60


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


def variant(frame: pd.DataFrame, row: pd.Series) -> str:
    """A row's values of the axes that vary: ``Post-LN, L = 96``."""
    names = [a for a in style.axes_of(frame) if frame[a].nunique() > 1]
    return ", ".join(style.label(frame, a, row[a]) for a in names)


def outcome_notes(frame: pd.DataFrame) -> list[str]:
    """Every variant with diverged runs, by name: ``Post-LN, L = 96: 1 of 3 diverged``."""
    if "diverged" not in frame:
        return []
    axes = style.axes_of(frame)
    variants = frame.drop_duplicates(axes) if axes else frame.head(1)
    bad = variants[variants["diverged"] > 0]
    said = []
    for _, v in bad.iterrows():
        who = variant(frame, v)
        of = f"{v['diverged']:.0f} of {v['runs']:.0f} diverged"
        said.append(f"{who}: {of}" if who else of)
    if len(said) > 8:
        more = bad.iloc[8:]
        said[8:] = [
            f"{len(more)} more variants: {more['diverged'].sum():.0f} of {more['runs'].sum():.0f}"
        ]
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
