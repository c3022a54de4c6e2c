"""`Record`: the statistics of a model that the Trainer of Hugging Face trains.

::

    trainer = Trainer(model, args, ..., callbacks=[stability.hf.Record("outputs/mine/run")])
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Unpack

from torch import nn

try:
    from transformers import (
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
except ImportError as error:
    raise ImportError(
        "stability.hf needs transformers: pip install 'gradient-stability[hf]'"
    ) from error

from stability.recording.external.recording import Recording
from stability.recording.record import Arguments, check, record

COLUMNS = {"loss": "loss", "eval_loss": "val_loss", "grad_norm": "grad_norm"}
"""What the Trainer logs -> column of the steps table."""


class Record(TrainerCallback):
    """Records the training of a Trainer, from its first step to its end or its exception.

    The steps are those of the Trainer. ``steps`` has what the Trainer logs: its ``loss``, which is
    the mean since it last logged, its ``eval_loss`` as ``val_loss``, its ``grad_norm``; and ``lr``
    of every step. A training that resumes from a checkpoint continues the recording in ``out``.

    Args:
        out: the run's folder, see `stability.record`.
        sites: see `stability.record`.
        options: all other arguments of `stability.record`.

    Raises:
        ValueError, TypeError: an argument is not legal.
        FileExistsError: when the training begins, ``out`` holds a run.
    """

    def __init__(self, out: str | Path, sites: str = "auto", **options: Unpack[Arguments]) -> None:
        check(options)
        self.out, self.sites, self.options = out, sites, options
        self.recording: Recording | None = None
        """The recording, while the Trainer trains."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Begin to record; again, if the Trainer begins again with a smaller batch."""
        options = self.options
        if self.recording is not None:
            self.close()
            options = {**options, "overwrite": True}
        if state.global_step:
            options = {**options, "first_step": state.global_step}
        model: nn.Module = given["model"]
        self.recording = record(model, self.out, self.sites, **options)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Log the learning rate of the update that comes."""
        if self.recording is not None:
            self.recording.log(lr=given["optimizer"].param_groups[0]["lr"])

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **given: Any,
    ) -> None:
        """Log what the Trainer logs."""
        if self.recording is not None:
            known = {COLUMNS[name]: v for name, v in (logs or {}).items() if name in COLUMNS}
            self.recording.log(**known)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """End the recording."""
        self.close()

    def close(self, error: BaseException | None = None) -> None:
        """End the recording, if it goes on.

        Args:
            error: what ended the training, if anything did.
        """
        if self.recording is not None:
            self.recording.close(error)
            self.recording = None


def _telling_of_errors(train: Callable[..., Any]) -> Callable[..., Any]:
    """``Trainer.train``, which tells no callback of an exception."""

    @wraps(train)
    def telling(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
        try:
            return train(trainer, *args, **kwargs)
        except BaseException as error:
            for callback in trainer.callback_handler.callbacks:
                if isinstance(callback, Record):
                    callback.close(error)
            raise

    return telling


setattr(Trainer, "train", _telling_of_errors(Trainer.train))  # noqa: B010
