"""One step of training: a function of the state, the batch, and whether it is recorded.

A step whose loss or gradient is not finite may leave its update out. The decision is taken on the
device and reaches the optimizer there, so that a GPU need not wait for the host.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stability.model.build import Built
from stability.model.optim import total_norm
from stability.recording import stats
from stability.recording.recorded_step import RecordedStep
from stability.recording.recorder import Recorder
from stability.training.divergence import judge
from stability.training.passes import Batch, clip, forward_backward


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
    """The numbers of a step; the last three are truth values."""

    loss: float
    grad_norm: float
    clip_factor: float
    loss_scale: float
    bad: float
    """The loss or the gradient was not finite."""
    left_out: float
    diverged: float


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
        return StepNumbers(*self._values.tolist())


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
    loss = forward_backward(built, batch, built.recorder)
    if recorder:
        recorder.gradients(float(scale))
    grads = built.optimizer.gradients(scale)
    norm = total_norm(grads)
    factor = clip(grads, norm, built.config.train.clip)
    policy = built.config.on_nonfinite
    bad, left_out = judge(loss, norm, built.loss_scale, policy, state.diverged)
    recorded = _update(built, batch.step, left_out, recorder)
    for buffer, before in zip(built.model.buffers(), buffers, strict=True):
        buffer.copy_(torch.where(left_out, before, buffer))
    values = (loss, norm, factor, scale, bad, left_out, state.diverged)
    return StepResult(batch.step, recorded, *_to_host(values))


def _update(
    built: Built, step: int, left_out: Tensor, recorder: Recorder | None
) -> RecordedStep | None:
    """Make the update, unless it is left out, and take what was recorded."""
    updates = built.config.train.steps > 0
    before = recorder.snapshot() if recorder and updates else None
    if updates:
        built.optimizer.step(step, left_out.to(torch.float32))
    if recorder is None:
        return None
    if before is not None:
        recorder.updates(before, None if bool(left_out) else built.optimizer.asked(before))
    return recorder.take()


def _to_host(values: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
    """The values on the CPU, and the event after which they are there (None: now)."""
    wide = stats.wide_dtype(values[0].device)
    stacked = torch.stack([v.detach().to(wide) for v in values])
    if stacked.device.type != "cuda":
        return stacked, None
    stacked = stacked.to("cpu", non_blocking=True)
    ready = torch.cuda.Event()
    ready.record()
    return stacked, ready
