"""Who gets the gradient: by token position, at every residual stream and in every weight.

- ``0``, ``1``, ...: mean square, over sequences and features, of the gradient of the stream at
  this position; at most 64 evenly spaced ones (`tokens.positions`);
- ``<weight>.first``, ``.quarter``, ``.rest``: Frobenius norm of sum_t delta_t x_t^T over the
  positions of a group (`tokens.groups`).

The gradient is that of the mean loss of the part of the batch that the probes see.
"""

from collections.abc import Iterator

from torch.linalg import vector_norm

from stability.config.token_positions import groups, positions
from stability.training.probes._look import Look, Row, square
from stability.training.probes.outer_product import outer


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
