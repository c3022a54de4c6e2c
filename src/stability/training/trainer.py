"""The loop: step t is the pass with the weights after t updates, and the update that follows it.

Divergence is an outcome, not an error. A flag on the device latches at the first non-finite loss or
gradient and reaches the optimizer, so that the weights of the last good step stay as they were; the
host reads it at once on a CPU and one step late on a GPU, without making the GPU wait.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stability.model.build import Built
from stability.model.optim import total_norm
from stability.recording.recorded_step import RecordedStep, first_bad
from stability.recording.recorder import Recorder
from stability.results.parquet import Writer
from stability.results.schema import CHECKPOINT_FILE
from stability.training import checkpoint, divergence
from stability.training.passes import Passes
from stability.training.probes import Prober
from stability.training.step_log import Journal, Numbers, Report, Step

log = logging.getLogger("stability")


@dataclass
class Outcome:
    """How a training ended."""

    status: str
    text: str
    steps_done: int
    final_loss: float | None = None
    final_val_loss: float | None = None
    first_bad: dict[str, Any] | None = None
    seconds: float = 0.0
    record_seconds: float = 0.0


CARRIED = ("first_bad", "seconds", "record_seconds")
"""Of an outcome, what a resumed run goes on with."""


class Trainer:
    """Trains one run and leaves its rows with the writers.

    Args:
        built: what the config builds.
        run: hash, for the tables.
        folder: where checkpoints go.
        writers: of the tables ``layers``, ``steps`` and, where probes are asked for, ``probes``.
        report: called a few times a second with the progress.
        stop: asked before each step whether to break off.
    """

    def __init__(
        self,
        built: Built,
        run: str,
        folder: Path,
        writers: Mapping[str, Writer],
        report: Report,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.built, self.run_hash, self.stop = built, run, stop
        self.folder = folder
        self.passes, self.journal = Passes(built), Journal(built, run, writers, report)
        self.prober = Prober(built, run) if built.config.record.probes else None
        self.train = built.config.train
        self.policy = built.config.on_nonfinite
        self.updates = self.train.steps
        self.first = 0
        self.diverged = torch.tensor(False, device=built.device)
        self.pending: deque[Step] = deque()
        self.lag = 1 if built.device.type == "cuda" else 0
        self.outcome = Outcome("completed", "completed", 0)
        self.ticked = time.perf_counter()

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one; drop the rows that will be written again."""
        state = checkpoint.load(self.folder / CHECKPOINT_FILE, self.run_hash, self.built.device)
        if state is not None:
            self.first = checkpoint.unpack(self.built, state)
            self.journal.recent.extend((loss, norm) for loss, norm in state["recent"])
            for name in CARRIED:
                setattr(self.outcome, name, state["outcome"][name])
            log.info("resumed at step %d", self.first)
        self.journal.keep(self.first)

    def _save(self, step: int) -> None:
        """Write a checkpoint that ``step`` starts from; every row before it is on disk first."""
        self.journal.flush()
        state = checkpoint.pack(self.built, step, self.run_hash)
        state["recent"] = [list(pair) for pair in self.journal.recent]
        self._tick()
        state["outcome"] = {name: getattr(self.outcome, name) for name in CARRIED}
        checkpoint.save(state, self.folder / CHECKPOINT_FILE)

    def run(self) -> Outcome:
        """Train to the end, to divergence, or to the first ``stop``."""
        self.ticked = time.perf_counter()
        self.built.model.train()
        self.outcome.steps_done = self.first
        batch = self.passes.batch(self.first)
        for step in range(self.first, max(self.updates, 1)):
            if self.stop():
                self._interrupt(step)
                break
            if not self._probe(step, *batch):
                break
            self.pending.append(self._step(step, *batch))
            batch = self.passes.batch(step + 1)
            if not self._settle(self.lag):
                break
            self._keep_safe(step + 1)
        self._settle(0)
        self._finish()
        self._tick()
        return self.outcome

    def _tick(self) -> None:
        """Count the seconds since last time."""
        now = time.perf_counter()
        self.outcome.seconds += now - self.ticked
        self.ticked = now

    def _probe(self, step: int, x_BT: Tensor, y_BT: Tensor) -> bool:
        """Take the step's probes, of a copy of the model; False where the run has diverged."""
        if self.prober is None or not self.journal.is_recorded(step):
            return True
        if not self._settle(0):
            return False
        began = time.perf_counter()
        self.journal.writers["probes"].append(self.prober.take(step, x_BT, y_BT))
        seconds = time.perf_counter() - began
        self.outcome.record_seconds += seconds
        log.info("probes of step %d took %.1f s", step, seconds)
        return True

    def _keep_safe(self, done: int) -> None:
        every = self.train.checkpoint_every
        if every and done % every == 0 and done < self.updates:
            if self._settle(0):
                self._save(done)
        elif self.journal.is_due(done):
            self.journal.flush()

    def _step(self, step: int, x_BT: Tensor, y_BT: Tensor) -> Step:
        built, began = self.built, time.perf_counter()
        recorder = built.recorder if self.journal.watches(step) else None
        every = self.train.eval_every
        val_loss = self.passes.validate() if every and step % every == 0 else None
        scale = built.loss_scale.scale.clone()
        if recorder:
            recorder.start()
        kept = [b.clone() for b in built.model.buffers()]
        loss = self.passes.forward_backward(x_BT, y_BT, step, built.recorder)
        if recorder:
            recorder.gradients(float(scale))
        grads = built.optimizer.gradients(scale)
        norm = total_norm(grads)
        clip = self.passes.clip(grads, norm)
        bad, left_out = self._judge(loss, norm)
        taken = self._update(step, left_out, recorder)
        for buffer, before in zip(built.model.buffers(), kept, strict=True):
            buffer.copy_(torch.where(left_out, before, buffer))
        numbers = (loss, norm, clip, scale, bad, left_out, self.diverged)
        values = torch.stack([n.detach().to(torch.float64) for n in numbers])
        ready = None
        if self.lag:
            values = values.to("cpu", non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
        return Step(step, scale, values, ready, taken, val_loss, began)

    def _update(
        self, step: int, left_out: Tensor, recorder: Recorder | None
    ) -> RecordedStep | None:
        """Make the update, unless it is left out, and take what was recorded."""
        optimizer = self.built.optimizer
        before = recorder.snapshot() if recorder and self.updates else None
        if self.updates:
            optimizer.step(step, left_out.to(torch.float32))
        if recorder is None:
            return None
        if before is not None:
            recorder.updates(before, None if bool(left_out) else optimizer.asked(before))
        return recorder.take()

    def _judge(self, loss: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Whether the step is bad, and whether its update is left out; latches ``diverged``."""
        scale = self.built.loss_scale
        lost = ~torch.isfinite(loss)
        bad = lost | ~torch.isfinite(norm)
        scale.update(bad)
        if self.policy == "continue":
            return bad, torch.zeros_like(bad)
        if self.policy == "stop":
            hopeless = scale.scale < 1 if scale.dynamic else bad
            self.diverged |= lost | hopeless
        return bad, bad | self.diverged

    def _settle(self, keep: int) -> bool:
        """Let the host look at the steps but the last ``keep``; False where the run diverged."""
        while len(self.pending) > keep:
            step = self.pending.popleft()
            if step.ready is not None:
                step.ready.synchronize()
            numbers = Numbers(*step.values.tolist())
            self.journal.write(step, numbers)
            self.outcome.steps_done = min(step.number + 1, self.updates)
            self.outcome.final_loss = numbers.loss
            self.outcome.record_seconds += step.taken.seconds if step.taken else 0.0
            if numbers.diverged:
                self.pending.clear()
                self._diverge(step)
                return False
            if numbers.bad and self.policy != "stop" and self.outcome.first_bad is None:
                self.outcome.first_bad = self._name_first_bad(step)
        return True

    def _interrupt(self, step: int) -> None:
        if self._settle(0):
            self._save(step)
            self.outcome.status = "interrupted"
            self.outcome.text = f"interrupted before step {step}"

    def _diverge(self, step: Step) -> None:
        self.outcome.status = "diverged"
        self.outcome.steps_done = step.number  # its own update was left out
        found = divergence.of_step(self, step.number, step.scale)
        where = f"step {found['step']}: first non-finite {divergence.spell(found)}"
        self.outcome.first_bad, self.outcome.text = found, f"diverged at {where}"

    def _name_first_bad(self, step: Step) -> dict[str, Any]:
        """The first non-finite tensor of a step whose update was dropped or made all the same."""
        # Under these two the weights may have moved on since, and the pass cannot be repeated.
        moved = self.policy == "continue" or (self.policy == "skip" and self.lag)
        found = None
        if not moved and not divergence.records_all(self.built):
            found = first_bad(divergence.whole(self, step.number, step.scale))
        elif step.taken:
            found = first_bad(self.journal.rows(step.taken, step.number))
        return found or divergence.nowhere(self, step.number)

    def rewind(self, end: int, record: bool) -> None:
        """Go back to the last checkpoint or the start, and make the steps before ``end`` again.

        If ``record``, write the rows of those that were not recorded the first time.
        """
        state = checkpoint.load(self.folder / CHECKPOINT_FILE, self.run_hash, self.built.device)
        self.diverged.fill_(False)
        self.journal.ring = deque(maxlen=int(record))  # a ring makes every step a recorded one
        first = checkpoint.unpack(self.built, state or checkpoint.start(self.built))
        for step in range(first, end):
            taken = self._step(step, *self.passes.batch(step)).taken
            if record and taken is not None and not self.journal.is_recorded(step):
                self.journal.layers.append(self.journal.rows(taken, step))

    def _finish(self) -> None:
        outcome = self.outcome
        if outcome.status == "completed":
            outcome.final_val_loss = self.passes.validate()
            if not math.isfinite(outcome.final_val_loss):
                outcome.status = "diverged"
                outcome.text = "diverged: the last validation loss is not finite"
                if self.policy != "continue":  # else it broke long ago, and has been named then
                    found = divergence.of_end(self)
                    outcome.first_bad = outcome.first_bad or found
                    outcome.text += f", nor is {divergence.spell(found)}"
        if outcome.status != "interrupted":
            if outcome.status == "completed" and self.train.keep_checkpoint:
                self._save(self.updates)
            else:
                (self.folder / CHECKPOINT_FILE).unlink(missing_ok=True)
        log.info("%s after %d steps", outcome.text, outcome.steps_done)
