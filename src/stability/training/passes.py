"""A run's batches on their way through its model: forward and backward, and validation."""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stability.model.build import Built
from stability.model.gpt import loss_sum
from stability.model.optim import total_norm
from stability.parts.batches import IGNORED
from stability.recording.recorder import Recorder


class Batch(NamedTuple):
    """Tokens and targets on the device, and the step that they belong to."""

    step: int
    x_BT: Tensor
    y_BT: Tensor


def train_batch(built: Built, step: int) -> Batch:
    """The training batch of a step."""
    config = built.config
    size, time, pad_share = config.train.batch_size, config.model.context, config.data.pad_share
    x_BT, y_BT = built.source.batch(step, size, time, config.seed, pad_share)
    return Batch(step, _on_device(x_BT, built.device), _on_device(y_BT, built.device))


def val_batch(built: Built, index: int, step: int = 0) -> Batch:
    """One of the fixed validation batches, passed with the weights after ``step`` updates."""
    config = built.config
    size, time, pad_share = config.train.batch_size, config.model.context, config.data.pad_share
    x_BT, y_BT = built.source.val_batch(index, size, time, pad_share)
    return Batch(step, _on_device(x_BT, built.device), _on_device(y_BT, built.device))


def _on_device(array: Any, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def forward_backward(built: Built, batch: Batch, recorder: Recorder | None = None) -> Tensor:
    """Forward and backward over all parts of a batch, from gradients of zero.

    Each part counts by its tokens. The gradients carry the loss scale; the loss that is returned,
    in nats per token, does not. The recorder is told after each part.
    """
    config = built.config
    built.optimizer.zero_grad()
    if config.model.dropout > 0:
        # A seed for each step: a resumed or repeated step drops what it dropped the first time.
        torch.manual_seed(config.seed * 1_000_003 + batch.step)
    tokens = (batch.y_BT != IGNORED).sum()
    parts = config.train.accumulate
    total = torch.zeros((), device=batch.x_BT.device, dtype=built.precision.at_least_fp32)
    pairs = zip(batch.x_BT.tensor_split(parts), batch.y_BT.tensor_split(parts), strict=True)
    for x_BT, y_BT in pairs:
        if recorder is not None and config.data.pad_share > 0:
            recorder.pass_has_padding(y_BT == IGNORED)
        with built.precision.context(built.device):
            loss = loss_sum(built.model(x_BT), y_BT) / tokens
        (loss * built.loss_scale.scale).backward()
        if recorder is not None:
            recorder.pass_done()
        total += loss.detach()
    return total


@torch.no_grad()
def validate(built: Built) -> float:
    """Mean loss in nats per token over ``train.eval_batches`` fixed batches."""
    # A compiled block would need a third form without gradients: these few passes run eagerly.
    compiled = built.config.compile
    eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    built.model.eval()
    total, count = 0.0, 0
    for index in range(built.config.train.eval_batches):
        _, x_BT, y_BT = val_batch(built, index)
        with eager, built.precision.context(built.device):
            loss = loss_sum(built.model(x_BT), y_BT)
        total += float(loss)
        count += int((y_BT != IGNORED).sum())
    built.model.train()
    return total / count


def clipped_gradients(built: Built, loss_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Make the gradients what the optimizer's step uses: without the loss scale, and clipped.

    Returns:
        Their L2 norm before clipping and the factor of the clipping, 0-d tensors.
    """
    grads = built.optimizer.gradients(loss_scale)
    norm = total_norm(grads)
    return norm, clip(grads, norm, built.config.train.clip)


def clip(grads: list[Tensor], norm: Tensor, limit: float) -> Tensor:
    """Multiply gradients in place by min(1, limit / (norm + 1e-12)), by 1 if the limit is 0.

    Returns:
        The factor, a 0-d tensor.
    """
    if limit == 0:
        return torch.ones_like(norm)
    factor = (limit / (norm + 1e-12)).clamp(max=1.0)
    torch._foreach_mul_(grads, factor.to(grads[0].dtype))
    return factor
