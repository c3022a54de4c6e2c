"""The residual stream in rows of the layers table: stacks, outputs of blocks, norms of tensors."""

from dataclasses import replace

import pandas as pd

from stability.config.names import BLOCK, INNER_SUBLAYERS, STACKS
from stability.results.sweep_rows import SweepRows


def stacks_apart(rows: SweepRows) -> SweepRows:
    """Rows in which encoder and decoder are variants, told apart by the axis ``stack``.

    Their sublayers are called as those of any model then: ``encoder.attn`` is ``attn``. Rows
    without a column ``sublayer``, or of models without an encoder and a decoder, stay as they are.
    """
    if "sublayer" not in rows.frame:
        return rows
    sublayer = rows.frame["sublayer"].astype(str)
    parts = {name: name.partition(".") for name in sublayer.unique()}
    apart = {name: (first, own or BLOCK) for name, (first, _, own) in parts.items()}
    if not any(stack in STACKS for stack, _ in apart.values()):
        return rows
    whole = {name: ("whole model", name) for name, (stack, _) in apart.items()}
    found = whole | {name: both for name, both in apart.items() if both[0] in STACKS}
    stacks = sublayer.map({name: stack for name, (stack, _) in found.items()})
    frame = rows.frame.assign(
        sublayer=sublayer.map({name: own for name, (_, own) in found.items()}),
        stack=pd.Categorical(stacks, [*STACKS, "whole model"]),
    )
    return replace(rows, frame=frame, axes=(*rows.axes, "stack"))


def run_columns(rows: pd.DataFrame) -> list[str]:
    """Columns that tell runs apart, and stacks of one run."""
    return ["run", "stack"] if "stack" in rows else ["run"]


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
