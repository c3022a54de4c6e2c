"""A page of panels, with legends and notes below them."""

import textwrap
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stability.figures.drawing import style
from stability.figures.drawing.notebook import NotebookFigure

MAX_PANELS = 60


@dataclass
class Page:
    """A figure of `count` panels, and what is written below them.

    Lengths are in inches. The height of a panel is its width times `aspect`, but at least
    `min_height` and at most `max_height`.
    """

    count: int
    columns: int
    width: float
    aspect: float = 0.78
    min_height: float = 1.45
    max_height: float = 2.5
    figure: Figure = field(init=False)
    axes: list[Axes] = field(init=False)
    notes: list[str] = field(default_factory=list)
    legends: list[list[Artist]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = -(-self.count // self.columns)
        height = self.width / self.columns * self.aspect
        self.height = rows * float(np.clip(height, self.min_height, self.max_height))
        self.figure = NotebookFigure(figsize=(self.width, self.height), layout="constrained")
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
                handles=handles, loc="lower center", ncols=columns, frameon=False, borderpad=0.1,
                borderaxespad=0.1, handlelength=2.4, columnspacing=1.2, labelspacing=0.3,
            )  # fmt: skip
            legend.set_in_layout(False)
            box = legend.get_window_extent(self.figure.canvas.get_renderer())  # type: ignore[attr-defined]
            if box.width <= self.width * self.figure.dpi or columns == 1:
                break
            legend.remove()
        return legend, box.height / self.figure.dpi + 0.03
