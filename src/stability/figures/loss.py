"""Loss by step, training and validation."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing.layout import Chart, Quantity
from stability.figures.drawing.lines import draw_lines, mark_exits
from stability.figures.drawing.select import COMMON, CannotDraw, over_seeds, require
from stability.figures.drawing.style import drawn
from stability.figures.drawing.variants import part
from stability.results.sweep_rows import SweepRows

TABLE = "steps"
COLUMNS = (
    *(*COMMON, "loss", "val_loss", "steps_done", "final_val_loss"),
    *("data.vocab", "data.unigram_entropy", "data.bigram_entropy"),
)
WHERE: dict[str, list[str]] = {}
STEPS = "all"
POINTS = 60
"""Points of a training curve; each is the mean over the steps between them."""
TRAIN, VALID = "training", "validation"
CONSTANTS = ["vocab", "unigram", "bigram"]


def data(rows: SweepRows) -> SweepRows:
    """Mean loss over windows of consecutive steps, validation losses, and where runs diverged.

    All in nats per token. ``x`` is the middle of the window. In rows of quantity ``diverged``, one
    per run that did, ``x`` is its last step and ``value`` its last finite loss. ``vocab`` is ln V,
    the loss of guessing; ``unigram`` and ``bigram`` are entropies of the data.
    """
    frame = rows.frame
    if require(frame, "steps recorded yet")["step"].max() < 1:
        raise CannotDraw("only one step, a curve needs two (train.steps)")
    if frame[["loss", "data.vocab"]].isna().all(axis=None):
        raise CannotDraw("no loss recorded (in a loop of your own: recording.log(loss=...))")
    known = frame.assign(
        vocab=np.log(frame["data.vocab"].astype(float)),
        unigram=frame["data.unigram_entropy"],
        bigram=frame["data.bigram_entropy"],
    )
    window = max(1, math.ceil((int(frame["step"].max()) + 1) / POINTS))
    curves = {TRAIN: windowed(known, window), VALID: _validations(known)}
    parts = [
        over_seeds(losses, rows.axes, [*CONSTANTS, "x"], "loss", "median").assign(quantity=name)
        for name, losses in curves.items()
    ]
    parts.append(_diverged(known, rows.axes))
    found = pd.concat([p for p in parts if len(p)], ignore_index=True)
    return rows.with_frame(found.assign(window=window))


def windowed(frame: pd.DataFrame, window: int) -> pd.DataFrame:
    """One row per run and window, the mean over its finite losses."""
    finite = frame["loss"].where(np.isfinite(frame["loss"].astype(float)))
    rows = frame.assign(loss=finite, x=frame["step"] // window * window + (window - 1) / 2)
    means = rows.groupby(["run", "x"], observed=True)["loss"].mean()
    first = rows.drop_duplicates(["run", "x"]).drop(columns="loss")
    return first.merge(means.reset_index(), on=["run", "x"])


def _validations(frame: pd.DataFrame) -> pd.DataFrame:
    """Validation losses at the steps they were taken, and the one after the last update."""
    taken = frame[frame["val_loss"].notna()].assign(
        loss=lambda f: f["val_loss"], x=lambda f: f["step"]
    )
    last = frame.drop_duplicates("run")
    last = last[last["final_val_loss"].notna()]
    last = last.assign(loss=last["final_val_loss"], x=last["steps_done"])
    return pd.concat([taken, last]).drop_duplicates(["run", "x"])


def _diverged(frame: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """A row per diverged run: its last step, and its last finite loss."""
    bad = frame[frame["status"] == "diverged"].sort_values("step")
    runs = bad.groupby("run", observed=True)
    finite = (
        bad[np.isfinite(bad["loss"].astype(float))].groupby("run", observed=True)["loss"].last()
    )
    rows = runs.tail(1).assign(x=lambda f: f["step"], value=lambda f: f["run"].map(finite))
    keep = [*axes, "x", "value", *CONSTANTS]
    return rows[keep].assign(quantity="diverged", seeds=1, not_finite=0)


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """Training beside validation; entropies of the data as lines, divergence as a cross."""
    frame = rows.frame
    curves = frame[frame["quantity"] != "diverged"].assign(not_finite=0)  # the crosses say it
    marks = frame[frame["quantity"] == "diverged"]
    limits = _limits(curves)
    label = "loss" if frame["vocab"].isna().all() else "loss (nats per token)"
    quantities = {name: Quantity(label, False, limits, _entropies) for name in (TRAIN, VALID)}
    chart = Chart(quantities, "step", across="quantity")
    lines = draw_lines(rows.with_frame(curves), chart, width)
    for ax, panel in lines.panels:
        ax.set_xlim(*_steps(frame))
        for look, line in lines.layout.curves(panel.frame):
            mark_exits(ax, line, look.color)
        for look, line in lines.layout.curves(part(marks, panel.facet)):
            y = line["value"].fillna(limits[1]).clip(*limits)
            ax.plot(
                line["x"], y, "x", color=look.color, markersize=5, gid="diverged", clip_on=False
            )
    return lines.close("median", *_smoothed(frame))


def _entropies(rows: pd.DataFrame) -> list[tuple[float, str]]:
    found = []
    for name in ("unigram", "bigram"):
        values = rows[name].dropna().unique()
        if len(values) == 1:
            found.append((float(values[0]), f"{name} entropy"))
    return found


def _limits(curves: pd.DataFrame) -> tuple[float, float]:
    """From below all curves to a little above guessing, so that a divergence flattens no curve."""
    values = curves["value"][np.isfinite(curves["value"])]
    guessing = curves[["vocab", "unigram"]].max().max()
    top = float(values.max() if pd.isna(guessing) else guessing)
    low = float(min([*values, *curves["bigram"].dropna(), top]))
    high = max(1.15 * top, 1.05 * float(values.quantile(0.5))) if len(values) else 1.15 * top
    high = min(high, max(1.05 * float(values.max()), 1.05 * top)) if len(values) else high
    return low - 0.05 * (high - low), high


def _steps(frame: pd.DataFrame) -> tuple[float, float]:
    """One horizontal axis for both panels."""
    low, high = frame["x"].min(), frame["x"].max()
    return low - 0.03 * (high - low), high + 0.03 * (high - low)


def _smoothed(frame: pd.DataFrame) -> list[str]:
    window = int(frame["window"].iloc[0])
    return [f"Training loss: mean over {window} steps."] if window > 1 else []
