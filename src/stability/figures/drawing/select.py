"""From recorded rows to the numbers that are drawn: which steps, and many seeds made one line."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

COMMON = ("run", "step", "status")
"""Columns that every figure of a table needs."""


class CannotDraw(Exception):
    """A sweep lacks what a figure shows; the text completes "skipped: ..."."""


def require(frame: pd.DataFrame, what: str) -> pd.DataFrame:
    """The frame itself, or CannotDraw where it has no rows."""
    if frame.empty:
        raise CannotDraw(f"no {what}")
    return frame


def ends(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of each run's first and last step in the frame, told apart by a column ``when``."""
    steps = frame.groupby("run", observed=True)["step"]
    first, last = steps.transform("min"), steps.transform("max")
    start = frame[frame["step"] == first]
    end = frame[(frame["step"] == last) & (last > first)]
    names = [_when(part["step"]) for part in (start, end) if len(part)]
    marked = pd.concat([part.assign(when=n) for part, n in zip((start, end), names, strict=False)])
    marked["when"] = pd.Categorical(marked["when"], [*dict.fromkeys(names)])
    return marked


def _when(steps: pd.Series) -> str:
    low, high = int(steps.min()), int(steps.max())
    if high == 0:
        return "at init"
    return f"at step {high}" if low == high else f"at the end\n(steps {low} to {high})"


def common_steps(frame: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """Rows at steps that at least half of a variant's seeds recorded, of those not diverged yet.

    A run that diverges records its last step, which the other seeds may not have recorded.
    """
    by = list(axes)
    points = frame[[*by, "run", "step"]].drop_duplicates()
    kept = []
    for _, variant in points.groupby(by, observed=True) if by else [((), points)]:
        last_steps = variant.groupby("run", observed=True)["step"].max().to_numpy()
        recorded = variant["step"].value_counts()
        steps = [t for t, n in recorded.items() if 2 * n >= (last_steps >= t).sum()]
        kept.append(variant[variant["step"].isin(steps)])
    return frame.merge(pd.concat(kept)[["run", "step"]], on=["run", "step"])


def over_seeds(
    frame: pd.DataFrame,
    axes: Sequence[str],
    keys: Sequence[str],
    value: str,
    centre: str = "geometric",
) -> pd.DataFrame:
    """One row per variant and key: the centre over seeds, and their range.

    Args:
        frame: rows with the axes, ``run``, ``status``, the value; ``nonfinite`` if known.
        axes: columns that tell variants apart, `SweepRows.axes`.
        keys: columns that tell points of a line and panels apart.
        value: the column to average.
        centre: ``geometric`` mean (0 where a seed is 0) or ``median``.

    Returns:
        axes, keys, ``value``, ``low``, ``high`` over the finite values; ``seeds`` that have the
        point, ``not_finite`` of them with a value or an entry that is not finite, ``runs`` of the
        variant and ``diverged`` among them. No seed is left out of these counts. ``rounding``, if
        it is known (`rounding.with_rounding`): the largest of the seeds.
    """
    by = [*axes, *keys]
    others = [c for c in ("rounding",) if c in frame]
    number = frame[value].astype(float)
    finite = number.where(np.isfinite(number))
    bad = ~np.isfinite(number)
    if "nonfinite" in frame:
        bad |= frame["nonfinite"].fillna(0) > 0
    work = frame[[*by, "run", *others]].assign(_finite=finite, _bad=bad)
    if centre == "geometric":
        with np.errstate(divide="ignore"):  # the logarithm of 0 is meant: the mean becomes 0
            work["_finite"] = np.log(finite)
    found = work.groupby(by, observed=True, dropna=False).agg(
        value=("_finite", "mean" if centre == "geometric" else "median"),
        low=("_finite", "min"),
        high=("_finite", "max"),
        seeds=("run", "nunique"),
        not_finite=("_bad", "sum"),
        **{c: (c, "max") for c in others},
    )
    if centre == "geometric":
        found[["value", "low", "high"]] = np.exp(found[["value", "low", "high"]])
    return _with_outcomes(found.reset_index(), frame, list(axes))


def _with_outcomes(found: pd.DataFrame, frame: pd.DataFrame, axes: list[str]) -> pd.DataFrame:
    """Columns ``runs`` and ``diverged``: how many each variant has."""
    once = frame.drop_duplicates(["run", *axes]).assign(_bad=lambda f: f["status"] == "diverged")
    if not axes:
        return found.assign(runs=len(once), diverged=int(once["_bad"].sum()))
    counts = once.groupby(axes, observed=True, dropna=False).agg(
        runs=("run", "nunique"), diverged=("_bad", "sum")
    )
    return found.merge(counts.reset_index(), on=axes, how="left")
