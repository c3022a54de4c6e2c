"""A run's batches on their way through its model: forward, backward, and to validate."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from stability.config.knobs import Config
from stability.model.build import Built
from stability.model.gpt import GPT, loss_sum
from stability.model.optim import total_norm
from stability.parts.batches import IGNORED
from stability.parts.precision import PRECISIONS
from stability.recording.recorder import Recorder


def forward_backward(
    config: Config,
    model: GPT,
    x_BT: Tensor,
    y_BT: Tensor,
    step: int,
    scale: Tensor,
    recorder: Recorder | None = None,
) -> Tensor:
    """Forward and backward over all parts of a step's batch; each part counts by its tokens.

    The gradients carry the loss scale; the loss that is returned, in nats per token, does not. The
    recorder is told after each part.
    """
    precision = PRECISIONS[config.dtype]
    if config.model.dropout > 0:
        # A seed for each step: a resumed or repeated step drops what it dropped the first time.
        torch.manual_seed(config.seed * 1_000_003 + step)
    tokens = (y_BT != IGNORED).sum()
    parts = config.train.accumulate
    dtype = torch.promote_types(precision.param, torch.float32)
    total = torch.zeros((), device=x_BT.device, dtype=dtype)
    for x, y in zip(x_BT.tensor_split(parts), y_BT.tensor_split(parts), strict=True):
        with precision.context(x_BT.device):
            loss = loss_sum(model(x), y) / tokens
        (loss * scale).backward()
        if recorder is not None:
            recorder.pass_done()
        total += loss.detach()
    return total


class Passes:
    """The passes of one run, each a function of the step and of the weights as they are.

    Args:
        built: what the config builds.
    """

    def __init__(self, built: Built) -> None:
        self.built, self.train = built, built.config.train

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The step's batch, on the device."""
        config = self.built.config
        x, y = self.built.source.batch(
            step,
            self.train.batch_size,
            config.model.context,
            config.seed,
            config.data.pad_share,
        )
        return self._to_device(x), self._to_device(y)

    def val_batch(self, index: int) -> tuple[Tensor, Tensor]:
        """One of the fixed validation batches."""
        config = self.built.config
        size, time = self.train.batch_size, config.model.context
        x, y = self.built.source.val_batch(index, size, time, config.data.pad_share)
        return self._to_device(x), self._to_device(y)

    def _to_device(self, array: Any) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.built.device.type != "cuda":
            return tensor.to(self.built.device)
        return tensor.pin_memory().to(self.built.device, non_blocking=True)

    def forward_backward(self, x_BT: Tensor, y_BT: Tensor, step: int, recorder: Recorder) -> Tensor:
        """The step's pass with its loss scale, from gradients of zero; its loss."""
        built = self.built
        built.optimizer.zero_grad()
        return forward_backward(
            built.config, built.model, x_BT, y_BT, step, built.loss_scale.scale, recorder
        )

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss in nats per token over ``train.eval_batches`` fixed batches."""
        built, config = self.built, self.built.config
        # A compiled block would need a third form without gradients: these few passes run eagerly.
        eager = torch.compiler.set_stance("force_eager") if config.compile else nullcontext()
        built.model.eval()
        total, count = 0.0, 0
        for index in range(self.train.eval_batches):
            x_BT, y_BT = self.val_batch(index)
            with eager, built.precision.context(built.device):
                loss = loss_sum(built.model(x_BT), y_BT)
            total += float(loss)
            count += int((y_BT != IGNORED).sum())
        built.model.train()
        return total / count

    def clip(self, grads: list[Tensor], norm: Tensor) -> Tensor:
        """Scale the gradients down to ``train.clip``; the factor that did it."""
        limit = self.train.clip
        if limit == 0:
            return torch.ones_like(norm)
        factor = (limit / (norm + 1e-12)).clamp(max=1.0)
        torch._foreach_mul_(grads, factor.to(grads[0].dtype))
        return factor

    def apply(self, step: int, scale: Tensor) -> None:
        """Make the update that belongs to the pass just made, whatever it holds."""
        grads = self.built.optimizer.gradients(scale)
        self.clip(grads, total_norm(grads))
        self.built.optimizer.step(step, torch.zeros((), device=self.built.device))
