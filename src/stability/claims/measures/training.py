"""What training reaches and costs: losses, deletion of blocks, seconds, bytes; paired by seed."""

import math

import pandas as pd

from stability.claims.measures._rows import Rows, Unmeasured, only, run_value, with_value
from stability.claims.yaml_types import ConfigKey, Scalar


def loss_difference(runs: Rows, axis: ConfigKey, of: Scalar, to: Scalar) -> float:
    """Validation loss at one value of an axis minus that at another, by seed, nats per token.

    loss(axis = ``of``) - loss(axis = ``to``).
    """
    return _loss(with_value(runs, axis, of)) - _loss(with_value(runs, axis, to))


def not_learned(runs: Rows) -> bool:
    """Whether the validation loss is not 0.3 nat below the unigram entropy (not learned)."""
    return not _learned(only(runs).iloc[0])


def not_learned_at(runs: Rows, axis: ConfigKey, of: Scalar) -> bool:
    """`not_learned` of the seed's run with axis = of."""
    return not_learned(with_value(runs, axis, of))


def final_loss(runs: Rows) -> float:
    """Validation loss at the end, nats per token."""
    return _loss(only(runs))


def evaluation_gap(runs: Rows, steps: Rows, last: int = 20) -> float:
    """Validation loss at the end minus the mean training loss of the last steps, nats per token."""
    rows = only(steps, "steps").sort_values("step")
    return _loss(only(runs)) - float(rows["loss"].tail(last).mean())


def excess_gap(
    runs: Rows, steps: Rows, axis: ConfigKey, of: Scalar, to: Scalar, factor: float = 3.0
) -> float:
    """Validation minus training loss at one value of an axis, minus a multiple of it at another.

    gap(axis = ``of``) - ``factor`` gap(axis = ``to``). A difference and not a ratio, since the
    second gap may be 0 or negative.
    """
    gaps = {}
    for name in (of, to):
        run = with_value(runs, axis, name)
        gaps[name] = evaluation_gap(run, steps[steps["run"].isin(run["run"])])
    return gaps[of] - factor * gaps[to]


def lesion_rise(probes: Rows, runs: Rows) -> float:
    """Median over blocks of the loss's rise when the block is deleted, over what was learned.

    What was learned: unigram entropy minus the intact net's loss on the same batch.
    """
    rows = only(probes[probes["probe"] == "lesion"], "probe lesion")
    intact = rows.loc[rows["item"] == "intact", "value"].iloc[0]
    learned = run_value(only(runs).iloc[0], "data.unigram_entropy") - float(intact)
    if learned <= 0:
        raise Unmeasured("nothing was learned")
    return float(rows.loc[rows["item"] == "rise", "value"].median()) / learned


def step_seconds_ratio(runs: Rows, steps: Rows, axis: ConfigKey, of: Scalar, to: Scalar) -> float:
    """Median seconds of a step at one value of an axis (``of``) over that at another (``to``)."""
    found = []
    for name in (of, to):
        mine = steps[steps["run"].isin(with_value(runs, axis, name)["run"])]
        found.append(float(only(mine, "steps")["step_s"].median()))
    return found[0] / found[1]


def norm_bytes_ratio(probes: Rows, runs: Rows, axis: ConfigKey, of: Scalar, to: Scalar) -> float:
    """Bytes that norms' operations move at one value of an axis (``of``) over another (``to``)."""
    rows = probes[probes["probe"] == "norm_bytes"]
    found = []
    for name in (of, to):
        mine = rows[rows["run"].isin(with_value(runs, axis, name)["run"])]
        found.append(float(only(mine, "probe norm_bytes")["value"].sum()))
    return found[0] / found[1]


def mean_over_noise(probes: Rows, runs: Rows) -> float:
    """Mean |mean| / std of what the norms read, over sqrt(2 / (pi d)), which is 1 for noise."""
    rows = only(probes[probes["probe"] == "token_mean"], "probe token_mean")
    width = run_value(only(runs).iloc[0], "model.width")
    return float(rows["value"].mean()) * math.sqrt(math.pi * width / 2)


def _learned(run: pd.Series) -> bool:
    return run["status"] == "completed" and run["learned"] is not None and bool(run["learned"])


def _loss(runs: Rows) -> float:
    """The final validation loss. A run that diverged counts as one that guesses: ln V."""
    run = runs.iloc[0]
    if run["status"] == "diverged":
        return math.log(run_value(run, "data.vocab"))
    return run_value(run, "final_val_loss")
