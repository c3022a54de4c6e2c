"""What one run says of its method: how it ended, how often it spiked, what it cost."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from stability.results.curated import by_block
from stability.results.frames import load
from stability.results.sweep_rows import SweepRows

WINDOW, LEAST, RISE = 201, 10, 0.1
"""A spike's median is of so many losses, of at least so many; and its height in nats."""
FASTEST = 0.1
"""Share of the steps whose time counts: what else the machine does slows the others."""
LEARNING_RATE = "train.lr"
ENDED = ("completed", "diverged")


class RunMeasures(NamedTuple):
    """The measures of one run; NaN where a number was not recorded."""

    lr: float
    seed: str
    loss: float
    """Validation loss of the final weights, else the last training loss; at most that at init.

    A run that diverged has the loss at init: min(loss, loss_0). Source: arXiv:2309.14322.
    """
    is_diverged: bool
    spikes: int
    steps: int
    variance_growth: float
    """Var(x_L) / Var(x_1) at the last recorded step."""
    evenness: float
    """Largest over smallest |delta_l| of l = 1 .. L, at the last recorded step: 1 where even."""
    evenness_median: float
    """The same of the median token's rms."""
    largest_logit: float
    """Largest magnitude of an attention logit at any recorded step."""
    step_ms: float
    """Milliseconds that the fastest tenth of the steps stay below, without recording."""
    parameters: float


def spikes(losses: "pd.Series[float]") -> int:
    """Losses above the median of the last `WINDOW` finite ones before them by more than `RISE`.

    Losses with fewer than `LEAST` before them are no spikes, and neither are those that are not
    finite.
    """
    finite = losses[np.isfinite(losses.astype(float))].astype(float)
    usual = finite.rolling(WINDOW, min_periods=LEAST).median().shift(1)
    return int((finite > usual + RISE).sum())


def largest_over_smallest(values: "pd.Series[float]") -> float:
    """NaN where there are no values or one is not finite, infinite where the smallest is 0."""
    if values.empty or not np.isfinite(values).all():
        return math.nan
    return float(values.max() / values.min()) if values.min() > 0 else math.inf


def measured(path: Path, runs: SweepRows) -> Iterator[tuple[Mapping[Any, Any], RunMeasures]]:
    """The row and the measures of each run that completed or diverged."""
    steps = _by_run(load(path, "steps", ["step", "loss", "step_s", "record_s"]))
    columns = ["step", "layer", "sublayer", "site", "kind", "rms", "token_rms_median", "absmax"]
    layers = _by_run(load(path, "layers", columns, {"site": ["resid_post", "scores"]}))
    for row in runs.frame.to_dict("records"):
        if row["status"] in ENDED:
            yield row, _measures(row, steps.get(row["run"]), layers.get(row["run"]))


def _by_run(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(run): rows for run, rows in frame.groupby("run", observed=True)}


def _measures(
    row: Mapping[Any, Any], steps: pd.DataFrame | None, layers: pd.DataFrame | None
) -> RunMeasures:
    stepped = pd.DataFrame() if steps is None else steps.sort_values("step")
    losses = stepped["loss"].astype(float) if len(stepped) else pd.Series(dtype=float)
    is_diverged = row["status"] == "diverged"
    of_layers = _at_end(row, layers)
    return RunMeasures(
        lr=_number(row.get(LEARNING_RATE)),
        seed=str(row.get("seed")),
        loss=_loss(row, losses, is_diverged),
        is_diverged=is_diverged,
        spikes=spikes(losses),
        steps=int(losses.notna().sum()),
        variance_growth=_number(row.get("variance_growth")),
        evenness=largest_over_smallest(by_block(of_layers, "grad", "rms")),
        evenness_median=largest_over_smallest(by_block(of_layers, "grad", "token_rms_median")),
        largest_logit=_largest_logit(layers),
        step_ms=_milliseconds(stepped),
        parameters=_number(row.get("parameters")),
    )


def _loss(row: Mapping[Any, Any], losses: "pd.Series[float]", is_diverged: bool) -> float:
    first = float(losses.iloc[0]) if len(losses) else math.nan
    if is_diverged:
        return first
    found = _number(row.get("final_val_loss"))
    return float(np.fmin(_number(row.get("final_loss")) if math.isnan(found) else found, first))


def _at_end(row: Mapping[Any, Any], layers: pd.DataFrame | None) -> pd.DataFrame:
    """The rows of the residual stream at the last recorded step."""
    if layers is None:
        return pd.DataFrame(columns=["step", "layer", "sublayer", "site", "kind"])
    return layers[(layers["site"] == "resid_post") & (layers["step"] == row["last_step"])]


def _largest_logit(layers: pd.DataFrame | None) -> float:
    if layers is None:
        return math.nan
    logits = layers[(layers["site"] == "scores") & (layers["kind"] == "act")]["absmax"]
    return float(logits.max()) if len(logits) else math.nan


def _milliseconds(steps: pd.DataFrame) -> float:
    if steps.empty:
        return math.nan
    return float((steps["step_s"] - steps["record_s"].fillna(0)).quantile(FASTEST)) * 1000


def _number(value: Any) -> float:
    """A number; one and the same NaN where there is none, so that it can be a key."""
    return math.nan if pd.isna(value) else float(value)
