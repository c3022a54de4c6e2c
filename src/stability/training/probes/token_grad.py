"""Gradient by token position, at every residual stream and in every weight.

- ``0``, ``1``, ...: mean square, over sequences and features, of the gradient of the stream at
  this position; at most 64 evenly spaced ones (`config.token_positions.positions`);
- ``<weight>.first``, ``.quarter``, ``.rest``: Frobenius norm of sum_t delta_t x_t^T over the
  positions of a group (`config.token_positions.groups`).

The gradient is that of the mean loss of the part of the batch that the probes see.
"""

from collections.abc import Iterator

from torch.linalg import vector_norm

from stability.config.token_positions import groups, positions
from stability.training.probes._context import STREAMS, SUBLAYERS, Item, ProbeContext, Row, square
from stability.training.probes.outer_product import outer

ITEMS = (
    Item(
        STREAMS,
        "position (`0`, `1`, ...; at most 64)",
        "mean square of the gradient at this position",
    ),
    Item(
        SUBLAYERS,
        "`q.first`, `q.quarter`, `q.rest`, ... for each weight",
        "norm of its gradient from position 0; from the rest of the first quarter; from the rest",
    ),
)


def rows(context: ProbeContext) -> Iterator[Row]:
    chosen = positions(context.x_BT.shape[1])
    for (layer, sublayer), (_, grad_BTD) in context.shared_pass.streams.items():
        values = square(grad_BTD).mean((0, 2))[chosen].tolist()
        for position, value in zip(chosen, values, strict=True):
            yield layer, sublayer, str(position), value
    for (layer, sublayer, name), flow in context.shared_pass.linears.items():
        if sublayer == "head":
            continue
        for group, part in groups(context.x_BT.shape[1]).items():
            share_OI = outer(flow.delta_BTO[:, part], flow.x_BTI[:, part])
            yield layer, sublayer, f"{name}.{group}", float(vector_norm(share_OI))
