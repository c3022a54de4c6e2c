"""`Record`: the statistics of a module that the Trainer of Lightning trains.

::

    trainer = Trainer(..., callbacks=[stability.lightning.Record("outputs/mine/run")])
"""

from pathlib import Path
from typing import Any, Unpack

import torch

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    reason = "stability.lightning needs lightning: pip install 'gradient-stability[lightning]'"
    raise ImportError(reason) from error

from stability.recording.external.recording import Recording
from stability.recording.record import Arguments, check, record


class Record(Callback):
    """Records the training of a Trainer, from its first step to its end or its exception.

    ``steps`` has the ``loss`` that ``training_step`` returns, the ``lr`` of the first optimizer,
    and as ``val_loss`` what the module logs under that name. Of several processes the loss is that
    of rank 0. A training that resumes from a checkpoint continues the recording in ``out``.

    Args:
        out: the run's folder, see `stability.record`.
        sites: see `stability.record`. The names begin at the LightningModule.
        val_loss: name under which the module logs its validation loss.
        options: all other arguments of `stability.record`.

    Raises:
        ValueError, TypeError: an argument is not legal.
        FileExistsError: when the training begins, ``out`` holds a run.
    """

    def __init__(
        self,
        out: str | Path,
        sites: str = "auto",
        *,
        val_loss: str = "val_loss",
        **options: Unpack[Arguments],
    ) -> None:
        check(options)
        self.out, self.sites, self.val_loss, self.options = out, sites, val_loss, options
        self.recording: Recording | None = None
        """The recording, while the Trainer trains."""
        self._steps_done = 0
        """Number of steps that had ended after the last batch."""
        self._loss: torch.Tensor | float = 0.0
        """Sum over the micro-batches of the step so far: Lightning divides each by their number."""

    def state_dict(self) -> dict[str, int]:
        """How many steps have ended, for a checkpoint."""
        return {"steps_done": self.recording.steps_done if self.recording else self._steps_done}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Continue at the step of a checkpoint."""
        self._steps_done = state_dict["steps_done"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to record."""
        options = self.options
        if trainer.global_step:
            options = {**options, "first_step": self._steps_done}
        else:
            self._steps_done = 0
        self.recording = record(pl_module, self.out, self.sites, **options)
        self._loss = 0.0

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Log the learning rate of the update that comes."""
        if self.recording is not None and optimizer is trainer.optimizers[0]:
            self.recording.log(lr=optimizer.param_groups[0]["lr"])

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Log the loss of the micro-batches of the step."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self.recording is None or not isinstance(loss, torch.Tensor):
            return
        self._loss = self._loss + loss.detach()
        self.recording.log(loss=self._loss)
        if self.recording.steps_done > self._steps_done:
            self._steps_done, self._loss = self.recording.steps_done, 0.0

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the validation loss."""
        if self.recording is not None and self.val_loss in trainer.callback_metrics:
            self.recording.log(val_loss=trainer.callback_metrics[self.val_loss])

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End the recording with an error."""
        self._close(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the recording."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        if self.recording is not None:
            self.recording.close(error)
            self._steps_done = self.recording.steps_done
            self.recording = None
