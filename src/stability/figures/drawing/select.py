"""From recorded rows to the numbers that are drawn: which steps, and many seeds made one line."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from stability.config.names import BLOCK
from stability.figures.drawing.style import axes_of, levels
from stability.parts.inits import ROLES

COMMON = ("run", "step", "status")
"""Columns that every figure of a table needs."""

MOST_WEIGHTS = 7
"""Weights whose panels stand side by side: q, k, v, out and three of a gated MLP."""


class CannotFill(Exception):
    """A sweep lacks what a figure shows; the text completes "skipped: ..."."""


def require(frame: pd.DataFrame, what: str) -> pd.DataFrame:
    """The frame itself, or CannotFill where it has no rows."""
    if frame.empty:
        raise CannotFill(f"no {what}")
    return frame


def ends(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of each run's first and last step in the frame, told apart by a column ``when``."""
    steps = frame.groupby("run", observed=True)["step"]
    first, last = steps.transform("min"), steps.transform("max")
    start = frame[frame["step"] == first]
    end = frame[(frame["step"] == last) & (last > first)]
    names = [_when(part["step"]) for part in (start, end) if len(part)]
    marked = pd.concat([part.assign(when=n) for part, n in zip((start, end), names, strict=False)])
    marked["when"] = pd.Categorical(marked["when"], list(dict.fromkeys(names)))
    marked.attrs = frame.attrs
    return marked


def together(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows at steps that at least half of a variant's still going seeds recorded.

    A run that diverges records its last step, which the other seeds may not have recorded.
    """
    axes = axes_of(frame)
    points = frame[_once(*axes, "run", "step")].drop_duplicates()
    kept = []
    for _, variant in points.groupby(axes, observed=True) if axes else [((), points)]:
        ends_at = variant.groupby("run", observed=True)["step"].max().to_numpy()
        recorded = variant["step"].value_counts()
        steps = [t for t, n in recorded.items() if 2 * n >= (ends_at >= t).sum()]
        kept.append(variant[variant["step"].isin(steps)])
    return like(frame, frame.merge(pd.concat(kept)[["run", "step"]], on=["run", "step"]))


def like(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, with what the frame knows of axes and options, which a merge loses."""
    rows.attrs = frame.attrs
    return rows


def matrices(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows about the weight matrices of the blocks: ``weight`` is the name, ``x`` blocks passed.

    Of somebody else's model nobody knows which weights are matrices: all that are no biases count,
    the largest first.
    """
    site = frame["site"].astype(str)
    inside = frame.assign(weight=site, x=frame["layer"].astype(int) + 1)
    inside = inside[(inside["x"] > 0) & (site != "head")]
    ours = inside["weight"].isin([*ROLES])
    foreign = ~inside["run"].isin(inside.loc[ours, "run"]) & ~inside["weight"].str.endswith("bias")
    other = _foreign(inside[foreign])
    rows = pd.concat([inside[ours], other]) if len(other) else inside[ours]
    largest = other.groupby("weight", sort=False)["numel"].max()
    names = [*ROLES, *largest.sort_values(ascending=False, kind="stable").index]
    seen = set(rows["weight"])
    kept = [n for n in names if n in seen]
    return like(frame, rows.assign(weight=pd.Categorical(rows["weight"], kept)))


def _foreign(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of a foreign model's weights, named by the sublayer too where its pattern names one."""
    where = rows["sublayer"].astype(str)
    names = rows["weight"].where(where == BLOCK, where + "." + rows["weight"])
    return rows.assign(weight=names.str.removesuffix("weight").str.rstrip("._"))


def first_weights(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Rows of as many weights as fit side by side, named to fit above a panel; what to say."""
    names = levels(frame, "weight")
    shown = names[:MOST_WEIGHTS]
    rows = frame[frame["weight"].isin(shown)]
    broken = [str(name).replace(".", ".\n") for name in rows["weight"]]
    order = [str(name).replace(".", ".\n") for name in shown]
    note = f"First {len(shown)} of {len(names)} weights; the csv has all."
    rows = rows.assign(weight=pd.Categorical(broken, order))
    return like(frame, rows), [note] if len(names) > len(shown) else []


def _when(steps: pd.Series) -> str:
    low, high = int(steps.min()), int(steps.max())
    if high == 0:
        return "at init"
    return f"at step {high}" if low == high else f"at the end\n(steps {low} to {high})"


def over_seeds(
    frame: pd.DataFrame, keys: Sequence[str], value: str, centre: str = "geometric"
) -> pd.DataFrame:
    """One row per variant and key: the centre over seeds, and their range.

    Args:
        frame: rows with the sweep's axes, ``run``, ``status``, the value; ``nonfinite`` if known.
        keys: columns that tell points of a line and panels apart.
        value: the column to average.
        centre: ``geometric`` mean (0 where a seed is 0) or ``median``.

    Returns:
        axes, keys, ``value``, ``low``, ``high`` over the finite values; ``seeds`` that have the
        point, ``not_finite`` of them with a value or an entry that is not finite, ``runs`` of the
        variant and ``diverged`` among them. No seed is left out of these counts.
    """
    axes = axes_of(frame)
    by = [*axes, *keys]
    number = frame[value].astype(float)
    finite = number.where(np.isfinite(number))
    bad = ~np.isfinite(number)
    if "nonfinite" in frame:
        bad |= frame["nonfinite"].fillna(0) > 0
    work = frame[_once(*by, "run")].assign(_finite=finite, _bad=bad)
    if centre == "geometric":
        with np.errstate(divide="ignore"):  # the logarithm of 0 is meant: the mean becomes 0
            work["_finite"] = np.log(finite)
    found = work.groupby(by, observed=True, dropna=False).agg(
        value=("_finite", "mean" if centre == "geometric" else "median"),
        low=("_finite", "min"),
        high=("_finite", "max"),
        seeds=("run", "nunique"),
        not_finite=("_bad", "sum"),
    )
    if centre == "geometric":
        found[["value", "low", "high"]] = np.exp(found[["value", "low", "high"]])
    result = found.reset_index()
    result = _with_outcomes(result, frame, axes)
    result.attrs = frame.attrs
    return result


def _with_outcomes(result: pd.DataFrame, frame: pd.DataFrame, axes: list[str]) -> pd.DataFrame:
    once = frame.drop_duplicates("run").assign(_bad=lambda f: f["status"] == "diverged")
    if not axes:
        return result.assign(runs=len(once), diverged=int(once["_bad"].sum()))
    counts = once.groupby(axes, observed=True, dropna=False).agg(
        runs=("run", "nunique"), diverged=("_bad", "sum")
    )
    return result.merge(counts.reset_index(), on=axes, how="left")


def _once(*names: str) -> list[str]:
    return list(dict.fromkeys(names))
