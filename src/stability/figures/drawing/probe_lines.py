"""Lines of what a probe measured: over blocks, for each weight, or over steps."""

from collections.abc import Mapping

import pandas as pd

from stability.config.names import BLOCK, FINAL_NORM
from stability.figures.drawing.select import COMMON, common_steps, ends, over_seeds, require
from stability.figures.drawing.weight_rows import symbol
from stability.parts.inits import ROLES
from stability.results.sweep_rows import SweepRows

COLUMNS = (*COMMON, "layer", "sublayer", "probe", "item", "value")
OUTSIDE = ("head", FINAL_NORM)
"""Sublayers that are not of a block."""


def over_blocks(
    rows: SweepRows, probe: str, items: Mapping[str, str], centre: str = "geometric"
) -> SweepRows:
    """The numbers of a probe at the first and last step, by block.

    Args:
        rows: of the table ``probes``.
        probe: its name.
        items: item -> the quantity that it is.
        centre: `select.over_seeds`.

    Returns:
        ``x`` counts blocks; the sublayers of block l lie at equal distances up to l.
    """
    frame = _of_probe(rows, probe, items)
    frame = frame[~frame["sublayer"].isin(OUTSIDE)]
    frame = ends(frame.assign(x=_places(frame), quantity=frame["item"].map(items)))
    found = over_seeds(frame, rows.axes, ["when", "quantity", "x"], "value", centre)
    return rows.with_frame(found)


def over_weights(rows: SweepRows, probe: str, quantity: str) -> SweepRows:
    """The numbers of a probe of weights at the first and last step, by block and ``weight``."""
    frame = _of_probe(rows, probe, {})
    frame = frame[~frame["sublayer"].isin(OUTSIDE)]
    known = [name for name in ROLES if name in set(frame["item"])]
    names = [*known, *sorted(set(frame["item"]) - {*known})]
    weights = pd.Categorical(frame["item"].map(symbol), [symbol(name) for name in names])
    frame = ends(frame.assign(x=frame["layer"].astype(int) + 1, weight=weights))
    found = over_seeds(frame, rows.axes, ["when", "weight", "x"], "value")
    return rows.with_frame(found.assign(quantity=quantity))


def over_steps(rows: SweepRows, probe: str, item: str, centre: str) -> SweepRows:
    """One number of a probe at every recorded step that most seeds have."""
    frame = common_steps(_of_probe(rows, probe, {item: item}), rows.axes)
    frame = frame.assign(x=frame["step"].astype(int))
    found = over_seeds(frame, rows.axes, ["x"], "value", centre)
    return rows.with_frame(found.assign(quantity=item))


def _of_probe(rows: SweepRows, probe: str, items: Mapping[str, str]) -> pd.DataFrame:
    """The rows of a probe's items; of all where none is named."""
    frame = rows.frame[rows.frame["probe"] == probe]
    frame = frame.assign(item=frame["item"].astype(str), sublayer=frame["sublayer"].astype(str))
    kept = frame[frame["item"].isin([*items])] if items else frame
    return require(kept, f"{probe} recorded (record.probes=[{probe}])")


def _places(frame: pd.DataFrame) -> pd.Series:
    """Where each row lies on the axis of blocks: the last sublayer of block l at l."""
    inside = frame["sublayer"][(frame["layer"] >= 0) & (frame["sublayer"] != BLOCK)].unique()
    place = {name: (i + 1) / len(inside) for i, name in enumerate(inside)} | {BLOCK: 1.0}
    x = frame["layer"].astype(float) + frame["sublayer"].map(place)
    return x.where(frame["layer"] >= 0, 0.0)  # the embedding
