"""One step of training: a function of the state, the batch, and whether it is recorded.

A step whose loss or gradient is not finite may leave its update out. The decision is taken on the
device and reaches the optimizer there, so that a GPU need not wait for the host.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stability.model.build import Built
from stability.recording import stats
from stability.recording.recorded_step import RecordedStep
from stability.recording.recorder import Recorder
from stability.training.divergence import judge
from stability.training.passes import Batch, clipped_gradients, forward_backward


class TrainingState:
    """What a step starts from, and changes.

    Args:
        built: what the config builds: the model, its optimizer and its loss scale are the state.

    Attributes:
        diverged: on the device; under ``on_nonfinite=stop`` it is set for good by the first step
            that is not finite, and from then on every update is left out.
    """

    def __init__(self, built: Built) -> None:
        self.built = built
        self.diverged = torch.tensor(False, device=built.device)


class StepNumbers(NamedTuple):
    """The numbers of one step as Python values."""

    loss: float
    grad_norm: float
    clip_factor: float
    loss_scale: float
    bad: bool
    """The loss or the gradient was not finite."""
    skipped: bool
    """The update was left out."""
    diverged: bool


@dataclass(frozen=True)
class StepResult:
    """What a step leaves behind beside the changed state; its numbers may still be on their way."""

    step: int
    recorded: RecordedStep | None
    _values: Tensor
    _ready: Any

    def numbers(self) -> StepNumbers:
        """The step's numbers. Waits for the device."""
        if self._ready is not None:
            self._ready.synchronize()
        loss, norm, factor, scale, *flags = self._values.tolist()
        return StepNumbers(loss, norm, factor, scale, *map(bool, flags))


def training_step(state: TrainingState, batch: Batch, record: bool) -> StepResult:
    """Make one step: the pass with the weights as they are, and the update that follows it.

    Args:
        state: changed in place.
        batch: of the step.
        record: whether to record the step with the state's recorder.
    """
    built = state.built
    recorder = built.recorder if record else None
    scale = built.loss_scale.scale.clone()
    buffers = [b.clone() for b in built.model.buffers()]
    if recorder:
        recorder.start()
    loss = forward_backward(built, batch, recorder)
    if recorder:
        recorder.gradients(float(scale))
    norm, factor = clipped_gradients(built, scale)
    policy = built.config.on_nonfinite
    bad, skipped = judge(loss, norm, built.loss_scale, policy, state.diverged)
    recorded = _update(built, batch.step, skipped, recorder)
    for buffer, before in zip(built.model.buffers(), buffers, strict=True):
        buffer.copy_(torch.where(skipped, before, buffer))
    values = (loss, norm, factor, scale, bad, skipped, state.diverged)
    return StepResult(batch.step, recorded, *_to_host(values))


def _update(
    built: Built, step: int, skipped: Tensor, recorder: Recorder | None
) -> RecordedStep | None:
    """Make the update, unless it is left out, and take what was recorded."""
    updates = built.config.train.steps > 0
    before = recorder.snapshot() if recorder and updates else None
    if updates:
        built.optimizer.step(step, skipped.to(torch.float32))
    if recorder is None:
        return None
    if before is not None:
        asked = partial(built.optimizer.asked, before)
        recorder.updates(before, None if bool(skipped) else asked)
    return recorder.take()


def _to_host(values: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
    """The values on the CPU, and the event after which they are there (None: now)."""
    wide = stats.fp64_dtype(values[0].device)
    stacked = torch.stack([v.detach().to(wide) for v in values])
    if stacked.device.type != "cuda":
        return stacked, None
    stacked = stacked.to("cpu", non_blocking=True)
    ready = torch.cuda.Event()
    ready.record()
    return stacked, ready
