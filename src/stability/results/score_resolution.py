"""How far a number format resolves attention's scores: the largest |score| times eps.

Scores are computed in fp32 or wider. A score s is known to about |s| eps, and so is the logarithm
of the softmax: where that is not small, rounding decides which tokens the softmax picks, with
every kernel. A fused kernel computes exp(s - log sum) again in the backward pass; from 1 on that
difference has no digit left.
"""

from typing import Any

import numpy as np
import pandas as pd

UNRESOLVED = 0.02
"""From here on gradients of the same net in fp64 differ, by factors."""
ROUNDING = 1.0
"""From here on the gradient of a fused kernel is rounding error."""


def score_eps(absmax: pd.Series, dtype: pd.Series | str | None) -> pd.Series:
    """|score| times the unit roundoff of what scores are held in: fp64, or else fp32.

    Args:
        absmax: largest magnitudes of scores.
        dtype: of the runs.
    """
    wide: Any = dtype == "fp64"
    return absmax * np.where(wide, 2.0**-53, 2.0**-24)
