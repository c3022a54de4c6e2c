"""Where a number format ends: overflow, and updates that round to nothing."""

import math
from statistics import NormalDist

import numpy as np
import pandas as pd

from stability.claims.measures._rows import (
    Kind,
    Rows,
    Unmeasured,
    first_nonfinite,
    gain,
    only,
    run_value,
)
from stability.config.names import SUBLAYER_ORDER, execution_key


def largest_number(runs: Rows) -> float:
    """Largest finite number of the run's dtype, as torch.finfo gave it."""
    return run_value(only(runs).iloc[0], "finfo.max")


def overflow_over_law(layers: Rows, runs: Rows) -> float:
    """First non-finite sublayer of a linear stack without norms, over the law of growth's.

    The law says 2 ln(max / (z sigma_0)) / ln(1 + d sigma_w^2), where z is the expected largest of
    the tensor's entries in units of their std, and max the dtype's largest number. For N magnitudes
    of normals z = a - (ln ln N + ln 4 pi) / 2a + 0.5772 / a with a = sqrt(2 ln N), and n entries
    are as good as N = 2n, for their two signs.
    """
    run = only(runs).iloc[0]
    bad = first_nonfinite(layers[layers["site"] == "resid_post"])
    embedding = layers[(layers["layer"] == -1) & (layers["kind"] == "act")]
    start = only(embedding, "act of the embedding").iloc[0]
    log_n = math.log(2 * int(start["numel"]))
    a = math.sqrt(2 * log_n)
    z = a - (math.log(log_n) + math.log(4 * math.pi) - 2 * 0.5772) / (2 * a)
    grown = run_value(run, "finfo.max") / (z * math.sqrt(start["var"]))
    law = 2 * math.log(grown) / math.log(1 + gain(run, "linear"))
    return (int(bad["layer"]) + 1) / law


def first_overflow(layers: Rows, kind: Kind = "act") -> str:
    """Sublayer and site of the first non-finite activation (or gradient, on the way down)."""
    bad = first_nonfinite(layers, kind)
    return f"{bad['sublayer']} {bad['site']}"


def overflow_block(layers: Rows, kind: Kind = "act") -> float:
    """Blocks passed, l, at the first non-finite activation (or gradient, on the way down)."""
    return float(first_nonfinite(layers, kind)["layer"] + 1)


def variance_at_overflow(layers: Rows) -> float:
    """Variance of the stream that enters the sublayer of the first non-finite activation."""
    bad = first_nonfinite(layers)
    here = (layers["layer"] == bad["layer"]) & (layers["sublayer"] == bad["sublayer"])
    rows = layers[here & (layers["site"] == "resid_pre") & (layers["kind"] == "act")]
    return float(only(rows, "act at resid_pre")["var"].iloc[0])


def blocks_after_score_overflow(layers: Rows, runs: Rows) -> float:
    """First non-finite block minus the block where attention's scores should exceed the maximum.

    A score is q k / sqrt(K) of std sqrt(g_q g_k) Var(x): it grows as the square of x. The expected
    largest of N normals is the quantile 1 - exp(-0.5772) / 2N.
    """
    run = only(runs).iloc[0]
    reads = layers[(layers["kind"] == "act") & (layers["site"] == "branch_in")]
    reads = only(reads[reads["sublayer"] == "attn"], "act at branch_in").sort_values("layer")
    tokens = reads["numel"] / run_value(run, "model.width")
    scores = run_value(run, "model.heads") * tokens * run_value(run, "model.context") / 2
    largest = [NormalDist().inv_cdf(1 - math.exp(-0.5772) / (2 * n)) for n in scores]
    size = np.array(largest) * reads["var"] * math.sqrt(gain(run, "q") * gain(run, "k"))
    passed = reads.loc[size > run_value(run, "finfo.max"), "layer"]
    if passed.empty:
        raise Unmeasured("no score is predicted to overflow")
    return float(first_nonfinite(layers)["layer"] - passed.iloc[0])


def overflows_first(runs: Rows, first: str, others: list[str]) -> bool:
    """Whether the run of one dtype is non-finite earlier than those of the others.

    Earlier: at an earlier step, or in the same step at an earlier place in the order of execution:
    weights as the step found them, forward, backward, update.
    """
    moments = {str(r["dtype"]): _moment(r) for _, r in runs.iterrows()}
    if absent := [name for name in (first, *others) if name not in moments]:
        raise Unmeasured(f"no run with dtype = {absent[0]}")
    if moments[first][0] == math.inf:
        raise Unmeasured(f"{first} stays finite")
    return all(moments[first] < moments[other] for other in others)


def first_bad_place(runs: Rows) -> str:
    """Step, block, sublayer and site where the run first was not finite."""
    run = only(runs).iloc[0]
    if math.isinf(_moment(run)[0]):
        return f"finite for {run['steps_done']} steps"
    step, block = int(run["first_bad.step"]), int(run["first_bad.layer"]) + 1
    where = f"{run['first_bad.sublayer']} {run['first_bad.site']} {run['first_bad.kind']}"
    return f"step {step}, block {block}, {where}"


def first_bad_step(runs: Rows) -> float:
    """The step of a run's first non-finite site; steps done where there is none."""
    run = only(runs).iloc[0]
    step, *_ = _moment(run)
    return float(run["steps_done"]) if math.isinf(step) else step


def _moment(run: pd.Series) -> tuple[float, ...]:
    if "first_bad.step" not in run or pd.isna(run["first_bad.step"]):
        return (math.inf,)
    place = int(run["first_bad.layer"]), SUBLAYER_ORDER.index(str(run["first_bad.sublayer"]))
    return (float(run["first_bad.step"]), *execution_key(run["first_bad.kind"], place))


def lost_share(layers: Rows) -> float:
    """Share of weight updates that rounded to nothing, over all recorded steps."""
    rows = only(layers[layers["kind"] == "update"], "updates")
    return float(rows["lost"].sum() / rows["numel"].sum())


def lost_share_ratio(layers: Rows, runs: Rows, of: str, to: str) -> float:
    """Share of updates lost in one dtype over another's; a count of 0 is taken as 1."""
    shares = {}
    for dtype in (of, to):
        rows = layers[layers["run"].isin(runs.loc[runs["dtype"].astype(str) == dtype, "run"])]
        rows = only(rows[rows["kind"] == "update"], f"updates in {dtype}")
        shares[dtype] = max(rows["lost"].sum(), 1) / rows["numel"].sum()
    return float(shares[of] / shares[to])
