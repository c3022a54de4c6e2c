"""Curves of two sides over each other: loss by step, and a statistic by depth."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stability.difference.numbers import Stat, layers_at
from stability.difference.pairing import Cell, Run, Side
from stability.figures.drawing import scales, style
from stability.figures.drawing.layout import BLOCKS
from stability.figures.drawing.page import Page
from stability.figures.drawing.style import drawn
from stability.figures.loss import POINTS, windowed
from stability.results import parquet as tables
from stability.results.curated import by_block

MAX_CELLS = 6
"""Variants that one figure shows."""
LOOKS = tuple(zip(style.COLOURS[:2], ("-", style.DASHES[1]), strict=True))
"""Colour and dash of A and of B. B is dashed, so that A is seen where the two coincide."""


def curves(cells: Sequence[Cell], steps: Sequence[int], stat: Stat) -> pd.DataFrame:
    """What is drawn: ``cell``, ``side``, ``run``, ``quantity`` (loss or the statistic), x, value.

    A loss is the mean over the window of steps around x, see ``windowed`` of the loss figure; the
    window is the same for all runs of a variant.
    """
    parts = []
    for number, (cell, step) in enumerate(zip(cells, steps, strict=True)):
        losses = [[_losses(run) for run in side] for side in (cell.a, cell.b)]
        last = max(int(f["step"].max()) if len(f) else 0 for side in losses for f in side)
        window = max(1, math.ceil((last + 1) / POINTS))
        for side, (runs, own) in enumerate(zip((cell.a, cell.b), losses, strict=True)):
            for run, loss in zip(runs, own, strict=True):
                known = {"cell": number, "side": "ab"[side], "run": run.path.name}
                points = windowed(loss, window).rename(columns={"loss": "value"})[["x", "value"]]
                parts.append(points.assign(**known, quantity="loss", window=window))
                depth = by_block(layers_at(run, step), *stat).rename("value").rename_axis("x")
                parts.append(depth.reset_index().assign(**known, quantity=str(stat)))
    return pd.concat([part for part in parts if len(part)], ignore_index=True)


def _losses(run: Run) -> pd.DataFrame:
    return tables.read(run.path, "steps", ["run", "step", "loss"]).to_pandas()


@drawn
def draw(
    found: pd.DataFrame,
    sides: tuple[Side, Side],
    cells: Sequence[Cell],
    steps: Sequence[int],
    stat: Stat,
    width: float = 6.75,
) -> Figure:
    """A row per variant: loss on the left, the statistic on the right."""
    shown = cells[:MAX_CELLS]
    page = Page(2 * len(shown), 2, width)
    for number, (cell, step) in enumerate(zip(shown, steps, strict=False)):
        left, right = page.axes[2 * number : 2 * number + 2]
        mine = found[found["cell"] == number]
        _panel(left, mine[mine["quantity"] == "loss"], log=False)
        of_depth = mine[mine["quantity"] == str(stat)]
        _panel(right, of_depth, log=bool((of_depth["value"].dropna() > 0).all()))
        left.set(xlabel="step", ylabel="loss", title=cell.label)
        right.set(xlabel=BLOCKS, ylabel=_label(stat), title=f"at step {step}")
    page.legends = [[_handle(side, look) for side, look in zip(sides, LOOKS, strict=True)]]
    page.notes = _notes(found, cells)
    return page.close()


def _panel(ax: Axes, rows: pd.DataFrame, log: bool) -> None:
    """Thin lines for the seeds of each side, a thick one for their median."""
    if rows.empty or not np.isfinite(rows["value"].astype(float)).any():
        ax.text(0.5, 0.5, "none", ha="center", color=style.GREY, transform=ax.transAxes)
        return
    for name, (colour, dash) in zip("ab", LOOKS, strict=True):
        own = rows[rows["side"] == name]
        runs = [run.sort_values("x") for _, run in own.groupby("run")]
        for run in runs if len(runs) > 1 else []:
            ax.plot(run["x"], run["value"], color=colour, alpha=0.35, linewidth=0.6, gid="seed")
        median = own.groupby("x")["value"].median()
        ax.plot(
            median.index, median, color=colour, linestyle=dash, linewidth=1.4, gid=name,
            marker="o" if len(median) < 20 else None, markersize=2.5,
        )  # fmt: skip
    if log:
        scales.log_y(ax, scales.log_limits(rows["value"]))
    scales.whole_ticks(ax.xaxis)


def _label(stat: Stat) -> str:
    """A statistic of the residual stream, for an axis."""
    of = {"act": "$x_l$", "grad": r"$\delta_l$"}.get(stat.kind, stat.kind)
    return f"{'variance' if stat.column == 'var' else stat.column} of {of}"


def _handle(side: Side, look: tuple[str, object]) -> Artist:
    colour, dash = look
    return Line2D([], [], color=colour, linestyle=dash, linewidth=1.4, label=side.name)  # type: ignore[arg-type]


def _notes(found: pd.DataFrame, cells: Sequence[Cell]) -> list[str]:
    said = []
    counts = [max(len(cell.a), len(cell.b)) for cell in cells]
    if max(counts) > 1:
        said.append(f"Thick: median; thin: each of up to {max(counts)} seeds.")
    window = found["window"].max() if "window" in found else 1
    if window > 1:
        said.append(f"Loss: mean over {window:.0f} steps.")
    if len(cells) > MAX_CELLS:
        said.append(f"First {MAX_CELLS} of {len(cells)} variants.")
    return said
