"""Gradients behind scores that their format does not resolve, see `results.score_resolution`."""

import pandas as pd

from stability.results.score_resolution import ROUNDING, UNRESOLVED, score_eps

SCORES = {"site": ["scores"], "kind": ["act"]}
"""The rows that `with_rounding` looks at."""
COLUMNS = ("site", "kind", "absmax", "model.attention", "dtype")
"""The columns that it needs."""


def with_rounding(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of the layers table with columns ``score_eps`` and ``rounding``, the same in a step.

    ``score_eps`` is the largest |score| times eps, whatever the kernel, and ``rounding`` the same
    for a fused kernel: from 1 on, the step's gradients below that block are rounding error. 0 for
    other kernels, and where no scores were recorded. Rows without these columns, such as the
    theory's, stay the same.
    """
    if not {*COLUMNS} <= {*frame}:
        return frame
    scores = (frame["site"] == "scores") & (frame["kind"] == "act")
    eps = score_eps(frame["absmax"], frame["dtype"]).where(scores, 0.0)
    largest = eps.groupby([frame["run"], frame["step"]], observed=True).transform("max").fillna(0.0)
    fused = frame["model.attention"] != "math"
    return frame.assign(score_eps=largest, rounding=largest.where(fused, 0.0))


def is_rounding(frame: pd.DataFrame) -> pd.Series:
    """Whether a row's gradient is rounding error; False where that is not known."""
    if "rounding" not in frame:
        return pd.Series(False, index=frame.index)
    return frame["rounding"].fillna(0.0) > ROUNDING


def is_unresolved(frame: pd.DataFrame) -> pd.Series:
    """Whether a row's format does not resolve the scores; False where that is not known."""
    if "score_eps" not in frame:
        return pd.Series(False, index=frame.index)
    return frame["score_eps"].fillna(0.0) > UNRESOLVED
