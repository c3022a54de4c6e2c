"""What training makes of it: losses, paired by seed."""

import math

import numpy as np
import pandas as pd

from stability.claims.measures._rows import Rows, Unmeasured, only


def loss_difference(runs: Rows, axis: str, of: object, to: object) -> float:
    """Validation loss at one value of an axis less that at another, by seed, nats per token.

    With axis = ``of`` less that with axis = ``to``.
    """
    return _loss(_chosen(runs, axis, of)) - _loss(_chosen(runs, axis, to))


def not_learned(runs: Rows) -> float:
    """1 if the validation loss is not 0.3 nat below the unigram entropy (not learned), else 0."""
    return 1.0 - float(_learned(only(runs).iloc[0]))


def not_learned_at(runs: Rows, axis: str, of: object) -> float:
    """`not_learned` of the seed's run with axis = of."""
    return not_learned(_chosen(runs, axis, of))


def final_loss(runs: Rows) -> float:
    """Validation loss at the end, nats per token."""
    return _loss(only(runs))


def evaluation_gap(runs: Rows, steps: Rows, last: int = 20) -> float:
    """Validation loss at the end less the mean training loss of the last steps, nats per token."""
    rows = only(steps, "steps").sort_values("step")
    return _loss(only(runs)) - float(rows["loss"].tail(last).mean())


def excess_gap(runs: Rows, steps: Rows, axis: str, of: str, to: str, factor: float = 3.0) -> float:
    """Validation less training loss at one value of an axis, less ``factor`` times that at another.

    A difference, since the second gap may be 0 or negative.
    """
    gaps = {}
    for name in (of, to):
        run = _chosen(runs, axis, name)
        gaps[name] = evaluation_gap(run, steps[steps["run"].isin(run["run"])])
    return gaps[of] - factor * gaps[to]


def lesion_rise(probes: Rows, runs: Rows) -> float:
    """Median over blocks of the loss's rise when the block is deleted, over what was learned.

    What was learned: unigram entropy less the intact net's loss on the same batch.
    """
    rows = only(probes[probes["probe"] == "lesion"], "probe lesion")
    intact = rows.loc[rows["item"] == "intact", "value"].iloc[0]
    learned = float(only(runs)["data.unigram_entropy"].iloc[0]) - float(intact)
    if learned <= 0:
        raise Unmeasured("nothing was learned")
    return float(rows.loc[rows["item"] == "rise", "value"].median()) / learned


def step_seconds_ratio(runs: Rows, steps: Rows, axis: str, of: str, to: str) -> float:
    """Median seconds of a step at one value of an axis (``of``) over that at another (``to``)."""
    found = []
    for name in (of, to):
        mine = steps[steps["run"].isin(_chosen(runs, axis, name)["run"])]
        found.append(float(only(mine, "steps")["step_s"].median()))
    return found[0] / found[1]


def norm_bytes_ratio(probes: Rows, runs: Rows, axis: str, of: str, to: str) -> float:
    """Bytes that norms' operations move at one value of an axis (``of``) over another (``to``)."""
    rows = probes[probes["probe"] == "norm_bytes"]
    found = []
    for name in (of, to):
        mine = rows[rows["run"].isin(_chosen(runs, axis, name)["run"])]
        found.append(float(only(mine, "probe norm_bytes")["value"].sum()))
    return found[0] / found[1]


def mean_over_noise(probes: Rows, runs: Rows) -> float:
    """Mean |mean| / std of what the norms read, over sqrt(2 / (pi d)), which is 1 for noise."""
    rows = only(probes[probes["probe"] == "token_mean"], "probe token_mean")
    width = float(only(runs)["model.width"].iloc[0])
    return float(rows["value"].mean()) * math.sqrt(math.pi * width / 2)


def _chosen(runs: Rows, axis: str, value: object) -> Rows:
    return only(runs[runs[axis].astype(str) == str(value)], f"run with {axis} = {value}")


def _learned(run: pd.Series) -> bool:
    return run["status"] == "completed" and run["learned"] is not None and bool(run["learned"])


def _loss(runs: Rows) -> float:
    """The final validation loss; a run that diverged counts as guessing, ln V."""
    run = runs.iloc[0]
    if run["status"] == "diverged":
        return math.log(float(run["data.vocab"]))
    if run["final_val_loss"] is None or np.isnan(run["final_val_loss"]):
        raise Unmeasured("no validation loss")
    return float(run["final_val_loss"])
