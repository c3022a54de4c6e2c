"""Who gets the gradient: by token position, at every residual stream and in every weight.

- ``0``, ``1``, ...: mean square, over sequences and features, of the gradient of the stream at
  this position; at most `POSITIONS` evenly spaced ones, the first and the last among them;
- ``<weight>.first``, ``.quarter``, ``.rest``: Frobenius norm of sum_t delta_t x_t^T over position
  0, over the rest of the first quarter of the positions, over all later ones.

The gradient is that of the mean loss of the part of the batch that the probes see.
"""

from collections.abc import Iterator

import torch
from torch.linalg import vector_norm

from stability.probes._look import Look, Row, square
from stability.probes.outer_product import outer

POSITIONS = 64


def groups(time: int) -> dict[str, slice]:
    """The token groups by name; together they are all positions."""
    quarter = max(time // 4, 1)
    return {"first": slice(0, 1), "quarter": slice(1, quarter), "rest": slice(quarter, time)}


def positions(time: int) -> list[int]:
    """At most `POSITIONS` evenly spaced positions."""
    even = torch.linspace(0, time - 1, min(time, POSITIONS), dtype=torch.float64)
    return even.round().long().tolist()


def rows(look: Look) -> Iterator[Row]:
    chosen = positions(look.x_BT.shape[1])
    for (layer, sublayer), (_, grad_BTD) in look.seen.streams.items():
        values = square(grad_BTD).mean((0, 2))[chosen].tolist()
        for position, value in zip(chosen, values, strict=True):
            yield layer, sublayer, str(position), value
    for (layer, sublayer, name), flow in look.seen.linears.items():
        if sublayer == "head":
            continue
        for group, part in groups(look.x_BT.shape[1]).items():
            share_OI = outer(flow.delta_BTO[:, part], flow.x_BTI[:, part])
            yield layer, sublayer, f"{name}.{group}", float(vector_norm(share_OI))
