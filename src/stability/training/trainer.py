"""The loop: step t is the pass with the weights after t updates, and the update that follows it.

Divergence is an outcome, not an error. The host reads the numbers of a step at once on a CPU, and
one step late on a GPU, which then need not wait for it. The weights that the failing step started
from are still intact: once a run has diverged, the device skips every later update.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from stability.model.build import Built
from stability.recording.recorded_step import first_bad
from stability.results.schema import CHECKPOINT_FILE
from stability.training import checkpoint, failure_replay, passes
from stability.training.failure import Failure, FirstBad, loss_place
from stability.training.outcome import Outcome
from stability.training.passes import Batch, train_batch
from stability.training.probes import Prober
from stability.training.step import StepNumbers, StepResult, TrainingState, training_step
from stability.training.step_log import StepLog

log = logging.getLogger("stability")


class Pending(NamedTuple):
    """A step that the host has not looked at yet."""

    result: StepResult
    val_loss: float | None
    began: float


class Diverged(Exception):
    """Ends the loop: nothing after this step is of use."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.step)
        self.failure = failure


class Trainer:
    """Trains one run.

    Args:
        built: what the config builds.
        folder: where checkpoints go.
        step_log: writes the rows.
        stop: asked before each step whether to break off.

    Attributes:
        failure: after `run`, what there is to repeat, if the run diverged.
    """

    def __init__(
        self, built: Built, folder: Path, step_log: StepLog, stop: Callable[[], bool]
    ) -> None:
        self.built, self.step_log, self.stop = built, step_log, stop
        self.config, self.steps = built.config, built.config.train.steps
        self.checkpoint_file = folder / CHECKPOINT_FILE
        self.state, self.first = TrainingState(built), 0
        self.prober = Prober(built, step_log.run) if self.config.record.probes else None
        self.pending: deque[Pending] = deque()
        self.lag = 1 if built.device.type == "cuda" else 0
        self.outcome = Outcome("completed", "completed", 0)
        self.failure: Failure | None = None
        self.last_time = time.perf_counter()

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one; drop the rows that will be written again."""
        saved = checkpoint.load(self.checkpoint_file, self.step_log.run)
        if saved is not None:
            self.first = checkpoint.unpack(self.built, saved)
            self.step_log.spikes.recent.extend((loss, norm) for loss, norm in saved["recent"])
            self.outcome.resume(saved["outcome"])
            log.info("resumed at step %d", self.first)
        self.step_log.keep(self.first)

    def run(self) -> Outcome:
        """Train to the end, to divergence, or to the first ``stop``."""
        self.last_time = time.perf_counter()
        self.built.model.train()
        self.outcome.steps_done = self.first
        try:
            self._train()
        except Diverged as end:
            self.failure = end.failure
            self.outcome.status, self.outcome.steps_done = "diverged", end.failure.step
        self._add_elapsed_seconds()
        return self.outcome

    def _train(self) -> None:
        batch = train_batch(self.built, self.first)
        for step in range(self.first, max(self.steps, 1)):
            if self.stop():
                self._interrupt(step)
                return
            self._probe(batch)
            self._step(batch)
            batch = train_batch(self.built, step + 1)
            self._log_steps(self.lag)
            self._checkpoint(step + 1)
        self._log_steps()
        self._validate_last()

    def _probe(self, batch: Batch) -> None:
        """Take the step's probes, of a copy of the model, if the step is written."""
        if self.prober is None or not self.step_log.layers.is_written(batch.step):
            return
        self._log_steps()
        began = time.perf_counter()
        self.step_log.add_probes(self.prober.take(batch))
        seconds = time.perf_counter() - began
        self.outcome.record_seconds += seconds
        log.info("probes of step %d took %.1f s", batch.step, seconds)

    def _step(self, batch: Batch) -> None:
        began, every = time.perf_counter(), self.config.train.eval_every
        val_loss = passes.validate(self.built) if every and batch.step % every == 0 else None
        record = self.step_log.layers.is_recorded(batch.step)
        self.pending.append(Pending(training_step(self.state, batch, record), val_loss, began))

    def _log_steps(self, keep: int = 0) -> None:
        """Log the steps but the last ``keep``.

        Raises:
            Diverged: one of them ends the run.
        """
        while len(self.pending) > keep:
            result, val_loss, began = self.pending.popleft()
            numbers = self.step_log.add(result, val_loss, began)
            self.outcome.steps_done = min(result.step + 1, self.steps)
            self.outcome.final_loss = numbers.loss
            self.outcome.record_seconds += result.recorded.seconds if result.recorded else 0.0
            if numbers.diverged:
                raise Diverged(self._failure(result, numbers))
            if numbers.bad and self.config.on_nonfinite != "stop" and not self.outcome.first_bad:
                self.outcome.first_bad = self._name_first_bad(result, numbers)

    def _failure(self, result: StepResult, numbers: StepNumbers) -> Failure:
        seen = None
        if result.recorded is not None:
            seen = first_bad(self.step_log.layers.rows(result.step, result.recorded))
        return Failure.of(self.built, result.step, self.step_log.run, numbers.loss_scale, seen)

    def _name_first_bad(self, result: StepResult, numbers: StepNumbers) -> FirstBad:
        """The first non-finite tensor of a step that does not end the run."""
        failure, policy = self._failure(result, numbers), self.config.on_nonfinite
        if policy == "continue" or self.lag:  # the weights may have moved on since
            return failure.seen or loss_place(self.config, result.step)
        return failure_replay.name_first_bad(failure, self.config)

    def _checkpoint(self, done: int) -> None:
        """Write a checkpoint, or at least the rows, if it is time."""
        every = self.config.train.checkpoint_every
        if every and done % every == 0 and done < self.steps:
            self._log_steps()
            self._save(done)
        else:
            self.step_log.flush_if_due(done)

    def _save(self, step: int) -> None:
        """Write a checkpoint that ``step`` starts from; every row before it is on disk first."""
        self.step_log.flush()
        self._add_elapsed_seconds()
        state = checkpoint.pack(self.built, step, self.step_log.run)
        state["recent"] = [list(pair) for pair in self.step_log.spikes.recent]
        state["outcome"] = self.outcome.carried()
        checkpoint.save(state, self.checkpoint_file)

    def _interrupt(self, step: int) -> None:
        self._log_steps()
        self._save(step)
        self.outcome.status = "interrupted"
        self.outcome.text = f"interrupted before step {step}"

    def _validate_last(self) -> None:
        loss = self.outcome.final_val_loss = passes.validate(self.built)
        if math.isfinite(loss):
            if self.config.train.keep_checkpoint:
                self._save(self.steps)
            return
        self.outcome.status = "diverged"
        self.outcome.text = "diverged: the last validation loss is not finite"
        if self.config.on_nonfinite != "continue":  # else it broke long ago, and was named then
            self.failure = Failure.of(self.built, self.steps, self.step_log.run)

    def _add_elapsed_seconds(self) -> None:
        """Count the seconds since last time."""
        now = time.perf_counter()
        self.outcome.seconds += now - self.last_time
        self.last_time = now
