"""The loss after deleting each block (the identity map in its place), minus the intact loss.

On the first validation batch, in evaluation mode. The streams of the intact net are kept, so that
each deletion runs only the blocks behind it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from stability.model.gpt import loss_sum
from stability.parts.batches import IGNORED
from stability.training.probes._context import BLOCKS, OUTPUT, Item, ProbeContext, Row

ITEMS = (
    Item(BLOCKS, "`rise`", "loss without the block minus the intact loss"),
    Item(OUTPUT, "`intact`", "the intact loss, nats per token"),
)


@torch.no_grad()
def rows(context: ProbeContext) -> Iterator[Row]:
    model, (_, x_BT, y_BT) = context.model.eval(), context.val_batch
    streams = [model.embed(x_BT)]
    for block in model.blocks:
        streams.append(block(streams[-1]))

    def loss(x_BTD: Tensor, first: int) -> float:
        for block in model.blocks[first:]:
            x_BTD = block(x_BTD)
        logits_BTV = model.head(x_BTD, model.embed.wte)
        return float(loss_sum(logits_BTV, y_BT) / (y_BT != IGNORED).sum())

    intact = loss(streams[-1], model.depth)
    yield model.depth, "head", "intact", intact
    for layer in range(model.depth):
        yield layer, "block", "rise", loss(streams[layer], layer + 1) - intact
