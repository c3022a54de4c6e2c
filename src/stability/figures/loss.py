"""Loss by step, training and validation."""

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing.lines import Lines, Quantity, edge
from stability.figures.drawing.roles import part
from stability.figures.drawing.select import COMMON, CannotFill, like, over_seeds, require
from stability.figures.drawing.style import axes_of, drawn

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


def data(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean loss over windows of consecutive steps, validation losses, and where runs diverged.

    All in nats per token. ``x`` is the middle of the window. In rows of quantity ``diverged``, one
    per run that did, ``x`` is its last step and ``value`` its last finite loss. ``vocab`` is ln V,
    the loss of guessing; ``unigram`` and ``bigram`` are entropies of the data.
    """
    if require(frame, "steps recorded yet")["step"].max() < 1:
        raise CannotFill("only one step, a curve needs two (train.steps)")
    if frame[["loss", "data.vocab"]].isna().all(axis=None):
        raise CannotFill("no loss recorded (in a loop of your own: recording.log(loss=...))")
    known = frame.assign(
        vocab=np.log(frame["data.vocab"].astype(float)),
        unigram=frame["data.unigram_entropy"],
        bigram=frame["data.bigram_entropy"],
    )
    window = max(1, math.ceil((int(frame["step"].max()) + 1) / POINTS))
    parts = [
        over_seeds(_windows(known, window), [*CONSTANTS, "x"], "loss", "median").assign(
            quantity=TRAIN
        ),
        over_seeds(_validations(known), [*CONSTANTS, "x"], "loss", "median").assign(quantity=VALID),
        _diverged(known),
    ]
    found = pd.concat([p for p in parts if len(p)], ignore_index=True).assign(window=window)
    found.attrs = frame.attrs
    return found


def _windows(frame: pd.DataFrame, window: int) -> pd.DataFrame:
    """One row per run and window, the mean over its finite losses."""
    finite = frame["loss"].where(np.isfinite(frame["loss"].astype(float)))
    rows = frame.assign(loss=finite, x=frame["step"] // window * window + (window - 1) / 2)
    means = rows.groupby(["run", "x"], observed=True)["loss"].mean()
    first = rows.drop_duplicates(["run", "x"]).drop(columns="loss")
    return like(frame, first.merge(means.reset_index(), on=["run", "x"]))


def _validations(frame: pd.DataFrame) -> pd.DataFrame:
    """Validation losses at the steps they were taken, and the one after the last update."""
    taken = frame[frame["val_loss"].notna()].assign(
        loss=lambda f: f["val_loss"], x=lambda f: f["step"]
    )
    last = frame.drop_duplicates("run")
    last = last[last["final_val_loss"].notna()]
    last = last.assign(loss=last["final_val_loss"], x=last["steps_done"])
    return like(frame, pd.concat([taken, last]).drop_duplicates(["run", "x"]))


def _diverged(frame: pd.DataFrame) -> pd.DataFrame:
    bad = frame[frame["status"] == "diverged"].sort_values("step")
    runs = bad.groupby("run", observed=True)
    finite = (
        bad[np.isfinite(bad["loss"].astype(float))].groupby("run", observed=True)["loss"].last()
    )
    rows = runs.tail(1).assign(x=lambda f: f["step"], value=lambda f: f["run"].map(finite))
    keep = [*axes_of(frame), "x", "value", *CONSTANTS]
    return rows[keep].assign(quantity="diverged", seeds=1, not_finite=0)


@drawn
def draw(frame: pd.DataFrame, width: float = 6.75) -> Figure:
    """Training beside validation; entropies of the data as lines, divergence as a cross."""
    curves = frame[frame["quantity"] != "diverged"].assign(not_finite=0)  # the crosses say it
    marks = frame[frame["quantity"] == "diverged"]
    limits = _limits(curves)
    label = "loss" if frame["vocab"].isna().all() else "loss (nats per token)"
    what = {name: Quantity(label, False, limits, _entropies) for name in (TRAIN, VALID)}
    lines = Lines(curves, what, "step", "quantity", width=width)
    for cell in lines.cells:
        cell.ax.set_xlim(*_steps(frame))
        for hue, dash, rows in lines.lines_of(cell.rows):
            lost = rows.loc[rows["value"] > limits[1], "x"].to_numpy(float)
            edge(cell.ax, lost, 0.97, "^", lines.looks(hue, dash)["color"])
        here = part(marks, cell.facet)
        for hue, dash, rows in lines.lines_of(here):
            colour = lines.looks(hue, dash)["color"]
            y = rows["value"].fillna(limits[1]).clip(*limits)
            cell.ax.plot(
                rows["x"], y, "x", color=colour, markersize=5, gid="diverged", clip_on=False
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
    """From below all curves to a little above guessing, so that one blow-up flattens nothing."""
    values = curves["value"][np.isfinite(curves["value"])]
    guessing = curves[["vocab", "unigram"]].max().max()
    roof = float(values.max() if pd.isna(guessing) else guessing)
    low = float(min([*values, *curves["bigram"].dropna(), roof]))
    high = max(1.15 * roof, 1.05 * float(values.quantile(0.5))) if len(values) else 1.15 * roof
    high = min(high, max(1.05 * float(values.max()), 1.05 * roof)) if len(values) else high
    return low - 0.05 * (high - low), high


def _steps(frame: pd.DataFrame) -> tuple[float, float]:
    """One horizontal axis for both panels."""
    low, high = frame["x"].min(), frame["x"].max()
    return low - 0.03 * (high - low), high + 0.03 * (high - low)


def _smoothed(frame: pd.DataFrame) -> list[str]:
    window = int(frame["window"].iloc[0])
    return [f"Training loss: mean over {window} steps."] if window > 1 else []
