"""The few numbers of a step that say how a run goes: for dashboards, and for comparing two runs.

A table has hundreds of rows for each step. A dashboard shows a dozen curves, and these are they.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from stability.config.names import STACKS
from stability.results.stream import block_outputs

OF_STEPS = ("loss", "val_loss", "lr", "grad_norm")
"""Columns of the steps table that are taken as they are."""

Numbers = dict[str, float]
"""Name -> number. NaN says that the number is not finite; what was not measured is absent."""


def curated(layers: Mapping[str, Any] | pd.DataFrame | None, step: Mapping[str, Any]) -> Numbers:
    """The curated numbers of one step.

    ``act_rms/first``, ``/middle``, ``/last`` and the same of ``grad_rms``: rms of the outputs of
    three blocks, and of the gradients there. ``grad_rms/last_over_first``: below 1, the gradient
    grows on its way to the first block. ``nonfinite_share``: NaN and infinite entries over the
    entries of all tensors that were recorded in the step.

    Args:
        layers: columns of the layers table, the rows of one step; None where it was not recorded.
        step: the row of the steps table.
    """
    found = {name: float(step[name]) for name in OF_STEPS if step.get(name) is not None}
    if layers is None:
        return found
    rows = pd.DataFrame({name: layers[name] for name in (*_KEYS, "numel", "nonfinite", "rms")})
    for kind in ("act", "grad"):
        found |= at_three_blocks(rows, kind, "rms")
    if "grad_rms/first" in found:
        found["grad_rms/last_over_first"] = _ratio(found["grad_rms/last"], found["grad_rms/first"])
    if entries := int(rows["numel"].sum()):
        found["nonfinite_share"] = float(rows["nonfinite"].fillna(0).sum()) / entries
    return found


_KEYS = ("layer", "sublayer", "site", "kind")


def by_block(layers: pd.DataFrame, kind: str, column: str) -> "pd.Series[float]":
    """A statistic of the outputs x_1 .. x_L of the blocks, by the number of blocks passed.

    If there are an encoder and a decoder, those of the decoder.

    Args:
        layers: rows of one step of one run.
        kind: ``act`` or ``grad``.
        column: a column of the layers table.
    """
    outputs = block_outputs(layers[layers["kind"] == kind])
    if set(STACKS) <= set(outputs["sublayer"]):
        outputs = outputs[outputs["sublayer"] == STACKS[-1]]
    outputs = outputs[outputs["l"] > 0].drop_duplicates("l", keep="last").sort_values("l")
    return outputs.set_index("l")[column].astype(float)


def at_three_blocks(layers: pd.DataFrame, kind: str, column: str) -> Numbers:
    """`by_block` at the first, the middle and the last block; empty where nothing was recorded."""
    values = by_block(layers, kind, column)
    if values.empty:
        return {}
    places = {"first": 0, "middle": (len(values) - 1) // 2, "last": -1}
    return {f"{kind}_{column}/{name}": float(values.iloc[i]) for name, i in places.items()}


def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom else math.nan
