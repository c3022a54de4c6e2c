"""Gradients that are the rounding error of a fused attention kernel.

Its backward pass computes exp(score - log sum) again, in fp32 or wider. Of a score beyond 1 / eps
that difference keeps no digit.
"""

import numpy as np
import pandas as pd

SCORES = {"site": ["scores"], "kind": ["act"]}
"""The rows that `with_rounding` looks at."""
COLUMNS = ("site", "kind", "absmax", "model.attention", "dtype")
"""The columns that it needs."""


def with_rounding(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of the layers table with a column ``rounding``, the same for all rows of a step.

    It is the largest |score| times the eps of the format in which a fused kernel computes again:
    from 1 on, the step's gradients below that block are rounding error. 0 for other kernels, and
    where no scores were recorded. Rows without these columns, such as the theory's, stay the same.
    """
    if not {*COLUMNS} <= {*frame}:
        return frame
    eps = np.where(frame["dtype"] == "fp64", 2.0**-53, 2.0**-24)
    fused = (frame["site"] == "scores") & (frame["kind"] == "act")
    fused &= frame["model.attention"] != "math"
    share = (frame["absmax"] * eps).where(fused, 0.0)
    largest = share.groupby([frame["run"], frame["step"]], observed=True).transform("max")
    return frame.assign(rounding=largest.fillna(0.0))


def is_rounding(frame: pd.DataFrame) -> pd.Series:
    """Whether a row's gradient is rounding error; False where that is not known."""
    if "rounding" not in frame:
        return pd.Series(False, index=frame.index)
    return frame["rounding"].fillna(0.0) > 1
