"""The gradient by token position, from rows of the probe ``token_grad``."""

from collections.abc import Sequence

import pandas as pd

PROBE = "token_grad"


def positions(rows: pd.DataFrame) -> pd.DataFrame:
    """The probe's rows of the stream, with ``position`` and the rms of the gradient there."""
    own = rows[rows["probe"] == PROBE]
    own = own[own["item"].astype(str).str.isdigit()]
    return own.assign(position=own["item"].astype(int), rms=own["value"].astype(float).pow(0.5))


def first_over_others(rows: pd.DataFrame, place: Sequence[str]) -> pd.DataFrame:
    """Rows of position 0, with ``ratio``: its rms over the mean rms of the other positions.

    1 where positions are alike. The mean is over the positions that the probe records, at most 64.
    Source: arXiv:2603.17771, which measures it in trained models.

    Args:
        rows: what `positions` gives.
        place: columns that tell streams apart.
    """
    others = rows["rms"].where(rows["position"] > 0)
    means = others.groupby([rows[name] for name in place], observed=True).transform("mean")
    return rows.assign(ratio=rows["rms"] / means)[rows["position"] == 0]
