"""A grid of small panels: a row per variant, side by side what is compared within it."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stability.figures.drawing import notes, style
from stability.figures.drawing.page import MAX_PANELS, Page
from stability.figures.drawing.variants import facets, part, title, varying_axes
from stability.results.sweep_rows import SweepRows


class Wall:
    """A row per variant; columns are the values of one more axis of the sweep, times ``shown``.

    Args:
        rows: with a column ``shown``.
        shown: its values that lie side by side for each variant.
        width: inches.
        aspect: height of a panel over its width.

    Attributes:
        variants, columns: what each row and each column shows, as values of the frame's columns.
    """

    def __init__(self, rows: SweepRows, shown: Sequence[str], width: float, aspect: float) -> None:
        names = varying_axes(rows)
        most = 3 if width < 4 else 5 if width < 6 else 7
        inner = [a for a in names if rows.frame[a].nunique() * len(shown) <= most][-1:]
        every = facets(rows, [a for a in names if a not in inner])
        self.rows = rows
        self.columns = [{**f, "shown": s} for f in facets(rows, inner) for s in shown]
        self.variants = every[: max(1, MAX_PANELS // len(self.columns))]
        count = len(self.variants) * len(self.columns)
        min_height = 0.86 if len(self.variants) > 2 else 1.3
        self.page = Page(count, len(self.columns), width, aspect, min_height, max_height=1.6)
        if len(every) > len(self.variants):
            said = f"First {len(self.variants)} of {len(every)} variants; the csv has all."
            self.page.notes.append(said)

    def axes(self, row: int) -> list[Axes]:
        n = len(self.columns)
        return self.page.axes[row * n : (row + 1) * n]

    def panels(self, row: int, frame: pd.DataFrame) -> list[tuple[Axes, pd.DataFrame]]:
        """The panels of a row for which the frame has something to show, and what."""
        mine = part(frame, self.variants[row])
        both = zip(self.axes(row), self.columns, strict=True)
        return [(ax, rows) for ax, where in both if len(rows := part(mine, where))]

    def close(self, x: str, y: str) -> Figure:
        """Titles above the columns, variants beside the rows, numbers at the edges."""
        limits = [_share(self.axes(row)) for row in range(len(self.variants))]
        for row, where in enumerate(self.variants):
            last = row == len(self.variants) - 1
            for column, ax in enumerate(self.axes(row)):
                below = last or limits[row] != limits[row + 1]
                ax.tick_params(labelleft=column == 0, labelbottom=below)
                ax.set_xlabel(x if last else "")
            text = "\n".join(filter(None, [title(self.rows, where), y]))
            self.axes(row)[0].set_ylabel(text)
        for ax, where in zip(self.axes(0), self.columns, strict=True):
            facet = {axis: value for axis, value in where.items() if axis != "shown"}
            ax.set_title("\n".join(filter(None, [title(self.rows, facet), where["shown"]])), pad=3)
        self.page.notes += notes.outcome_notes(self.rows) + notes.remark_notes(self.rows)
        return self.page.close()


def _share(axes: list[Axes]) -> tuple[float, float]:
    """Give panels the same limits, those that hold what each shows; the horizontal ones."""
    full = [ax for ax in axes if ax.has_data()]
    for ax in (ax for ax in axes if ax not in full):
        ax.text(0.5, 0.5, "none", ha="center", color=style.GREY, transform=ax.transAxes)
    if not full:
        return 0.0, 1.0
    x, y = (np.array([getattr(ax, f"get_{w}lim")() for ax in full]) for w in "xy")
    limits = float(x[:, 0].min()), float(x[:, 1].max())
    for ax in axes:
        ax.set(xlim=limits, ylim=(y[:, 0].min(), y[:, 1].max()), yscale=full[0].get_yscale())
    return limits
