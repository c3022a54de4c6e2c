"""The residual stream in rows of the layers table: outputs of blocks, and norms of tensors."""

import pandas as pd

from stability.config.names import INNER_SUBLAYERS


def ends_block(rows: pd.DataFrame) -> pd.Series:
    """Whether a row's sublayer is the last of its block."""
    return ~rows["sublayer"].astype(str).isin(INNER_SUBLAYERS)


def block_outputs(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of x_0 (the embedding) and of each block's output among those of site ``resid_post``.

    Adds ``l``, the number of blocks passed: 0 for the embedding, 1 .. L for the blocks.
    """
    stream = rows[(rows["site"] == "resid_post") & ends_block(rows)]
    return stream.assign(l=stream["layer"].astype(int) + 1)


def l2(rows: pd.DataFrame) -> pd.Series:
    """L2 norm of each row's tensor: rms * sqrt(numel - nonfinite)."""
    return rows["rms"] * (rows["numel"] - rows["nonfinite"].fillna(0)).pow(0.5)
