"""Final loss against the learning rate."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from stability.figures.drawing.layout import Chart, Quantity
from stability.figures.drawing.lines import draw_lines, mark_edge
from stability.figures.drawing.select import CannotDraw, over_seeds
from stability.figures.drawing.style import drawn
from stability.results.sweep_rows import SweepRows

TABLE = "runs"
COLUMNS = (
    *("run", "status", "train.lr", "final_loss", "final_val_loss"),
    *("data.vocab", "data.unigram_entropy"),
)
WHERE: dict[str, list[str]] = {}
STEPS = "ends"


def data(rows: SweepRows) -> SweepRows:
    """Final loss by learning rate: the median over seeds that did not diverge.

    The validation loss where there is one, else the training loss. ``guess`` is ln V, ``unigram``
    the entropy of single tokens, below which a net has used the context.
    """
    if "train.lr" not in rows.axes:
        raise CannotDraw("the learning rate does not vary")
    frame = rows.frame
    loss = frame["final_val_loss"].fillna(frame["final_loss"]).astype(float)
    frame = frame.assign(
        x=frame["train.lr"].astype(float),
        loss=loss.where(frame["status"] == "completed"),
        guess=np.log(frame["data.vocab"].astype(float)),
        unigram=frame["data.unigram_entropy"].astype(float),
    )
    if frame["loss"].isna().all():
        raise CannotDraw("no run has a final loss")
    found = over_seeds(frame, rows.axes, ["guess", "unigram", "x"], "loss", "median")
    return rows.with_frame(found.assign(quantity="loss"))


@drawn
def draw(rows: SweepRows, width: float = 6.75) -> Figure:
    """One panel; a cross where every seed diverged."""
    frame = rows.frame
    quantity = Quantity("final loss (nats per token)", False, _limits(frame), _unigram)
    chart = Chart({"loss": quantity}, "learning rate", across="quantity", without=("train.lr",))
    lines = draw_lines(rows.with_frame(frame.assign(not_finite=0)), chart, width)
    for ax, panel in lines.panels:
        ax.set_xscale("log")
        for look, line in lines.layout.curves(panel.frame):
            gone = line.loc[line["diverged"] >= line["runs"], "x"]
            mark_edge(ax, gone.to_numpy(float), 1.0, "x", look.color, "diverged")
    return lines.close("median")


def _limits(frame: pd.DataFrame) -> tuple[float, float]:
    """From below the best loss to a little above guessing."""
    best, worst = float(frame["value"].min()), float(frame["value"].max())
    guess = frame["guess"].max()
    top = worst if pd.isna(guess) else min(worst, float(guess))
    pad = 0.06 * (top - best) or 0.1
    return best - pad, max(top, best) + pad


def _unigram(rows: pd.DataFrame) -> list[tuple[float, str]]:
    return [(float(v), "unigram entropy") for v in rows["unigram"].dropna().unique()[:1]]
