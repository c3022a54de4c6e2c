"""Makes steps of a run again, on a model of its own that nothing else uses."""

import torch
from torch import Tensor

from stability.model.build import Built, recorder_of
from stability.recording.layer_log import LayerLog
from stability.recording.recorded_step import RecordedStep
from stability.recording.recorder import Recorder
from stability.training import checkpoint
from stability.training.checkpoint import Checkpoint
from stability.training.passes import Batch, clipped_gradients, forward_backward, train_batch
from stability.training.step import TrainingState, training_step


class Replayer:
    """Repeats steps of a run; deterministic up to the order in which a GPU adds.

    Args:
        built: what the config builds, afresh: the weights that step 0 starts from.
    """

    def __init__(self, built: Built) -> None:
        self.built, self.state, self.step = built, TrainingState(built), 0
        built.model.train()

    def load(self, saved: Checkpoint) -> None:
        """Start from a saved state."""
        self.step = checkpoint.unpack(self.built, saved)

    def advance(self, end: int, layers: LayerLog | None = None) -> None:
        """Make the steps before ``end``; write to ``layers`` those that the run has not written."""
        for step in range(self.step, end):
            record = layers is not None and not layers.is_written(step)
            result = training_step(self.state, train_batch(self.built, step), record)
            if layers is not None and result.recorded is not None:
                layers.write(layers.rows(step, result.recorded))
        self.step = end

    def repeat(self, batch: Batch, recorder: Recorder | None = None) -> Tensor:
        """Make the forward and backward pass of a step; its loss."""
        return forward_backward(self.built, batch, recorder)

    def record(self, batch: Batch, update: bool = False) -> RecordedStep:
        """Make a pass and record every kind at every site; then, if asked, its update.

        The update is made whatever the gradients hold.
        """
        recorder = recorder_of(self.built.config, self.built.model, all_kinds=True)
        recorder.start()
        self.repeat(batch, recorder)
        recorder.gradients(float(self.built.loss_scale.scale))
        if update:
            before = recorder.snapshot()
            self._update(batch.step)
            recorder.updates(before, None)
        recorded = recorder.take()
        recorder.detach()
        return recorded

    def _update(self, step: int) -> None:
        built = self.built
        clipped_gradients(built, built.loss_scale.scale)
        built.optimizer.step(step, torch.zeros((), device=built.device))
