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
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from stability import autopsy, checkpoint
from stability.build import Built
from stability.model import GPT, IGNORED, loss_sum
from stability.optim import learning_rate, total_norm
from stability.precision import PRECISIONS
from stability.probes import Prober
from stability.recorder import Recorder
from stability.schema import CHECKPOINT_FILE
from stability.table import Writer
from stability.taken import Rows, Taken, first_bad

log = logging.getLogger("stability")

Report = Callable[[dict[str, Any]], None]
REPORT_SECONDS = 0.25
FLUSH_SECONDS = 60.0
"""Rows wait no longer than this for their way to disk, however long a step takes."""

SPIKE_WINDOW, SPIKE_LEAST = 50, 10
SPIKE_LOSS, SPIKE_GRADIENT = 1.0, 10.0
"""A step is a spike where, against the medians of the last 50 steps (at least 10), the loss is more
than 1 nat higher or the gradient norm more than 10 times larger."""


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


@dataclass
class Step:
    """A step whose numbers the host has not looked at yet."""

    number: int
    scale: Tensor
    values: Tensor
    ready: Any
    taken: Taken | None
    val_loss: float | None
    began: float


def forward_backward(
    config: Mapping[str, Any],
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
    precision = PRECISIONS[config["dtype"]]
    if config["model"]["dropout"] > 0:
        # A seed for each step: a resumed or repeated step drops what it dropped the first time.
        torch.manual_seed(config["seed"] * 1_000_003 + step)
    tokens = (y_BT != IGNORED).sum()
    parts = config["train"]["accumulate"]
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
        self.built, self.run_hash, self.report, self.stop = built, run, report, stop
        self.folder, self.writers = folder, writers
        self.layers, self.steps = writers["layers"], writers["steps"]
        self.prober = Prober(built, run) if built.config["record"]["probes"] else None
        self.train, self.record = built.config["train"], built.config["record"]
        self.policy = built.config["on_nonfinite"]
        self.updates = self.train["steps"]
        self.first = 0
        self.diverged = torch.tensor(False, device=built.device)
        self.pending: deque[Step] = deque()
        self.recent: deque[tuple[float, float]] = deque(maxlen=SPIKE_WINDOW)
        self.ring: deque[tuple[int, Taken]] = deque(maxlen=self.record["ring"])
        self.lag = 1 if built.device.type == "cuda" else 0
        self.outcome = Outcome("completed", "completed", 0)
        self.reported, self.flush_by = 0.0, time.monotonic() + FLUSH_SECONDS
        self.ticked = time.perf_counter()

    # Batches ---------------------------------------------------------------------------------

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        config = self.built.config
        x, y = self.built.source.batch(
            step,
            self.train["batch_size"],
            config["model"]["context"],
            config["seed"],
            config["data"]["pad_share"],
        )
        return self.to_device(x), self.to_device(y)

    def val_batch(self, index: int) -> tuple[Tensor, Tensor]:
        """One of the fixed validation batches."""
        config = self.built.config
        size, time = self.train["batch_size"], config["model"]["context"]
        x, y = self.built.source.val_batch(index, size, time, config["data"]["pad_share"])
        return self.to_device(x), self.to_device(y)

    def to_device(self, array: Any) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.built.device.type != "cuda":
            return tensor.to(self.built.device)
        return tensor.pin_memory().to(self.built.device, non_blocking=True)

    # Passes ----------------------------------------------------------------------------------

    def forward_backward(self, x_BT: Tensor, y_BT: Tensor, step: int, recorder: Recorder) -> Tensor:
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
        eager = torch.compiler.set_stance("force_eager") if config["compile"] else nullcontext()
        built.model.eval()
        total, count = 0.0, 0
        for index in range(self.train["eval_batches"]):
            x_BT, y_BT = self.val_batch(index)
            with eager, built.precision.context(built.device):
                loss = loss_sum(built.model(x_BT), y_BT)
            total += float(loss)
            count += int((y_BT != IGNORED).sum())
        built.model.train()
        return total / count

    def _clip(self, grads: list[Tensor], norm: Tensor) -> Tensor:
        limit = self.train["clip"]
        if limit == 0:
            return torch.ones_like(norm)
        factor = (limit / (norm + 1e-12)).clamp(max=1.0)
        torch._foreach_mul_(grads, factor.to(grads[0].dtype))
        return factor

    # The loop --------------------------------------------------------------------------------

    def is_recorded(self, step: int) -> bool:
        """Whether the step's rows go to disk even if nothing goes wrong."""
        return step % self.record["every"] == 0 or step == max(self.updates - 1, 0)

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one; drop the rows that will be written again."""
        state = checkpoint.load(self.folder / CHECKPOINT_FILE, self.run_hash, self.built.device)
        if state is not None:
            self.first = checkpoint.unpack(self.built, state)
            self.recent.extend((loss, norm) for loss, norm in state["recent"])
            for name in CARRIED:
                setattr(self.outcome, name, state["outcome"][name])
            log.info("resumed at step %d", self.first)
        # A step that was recorded only because it was the last is no longer the last.
        for name, table in self.writers.items():
            table.keep(range(0, self.first, 1 if name == "steps" else self.record["every"]))

    def _save(self, step: int) -> None:
        """Write a checkpoint that ``step`` starts from; every row before it is on disk first."""
        self._flush()
        state = checkpoint.pack(self.built, step, self.run_hash)
        state["recent"] = [list(pair) for pair in self.recent]
        self._tick()
        state["outcome"] = {name: getattr(self.outcome, name) for name in CARRIED}
        checkpoint.save(state, self.folder / CHECKPOINT_FILE)

    def _flush(self) -> None:
        self.flush_by = time.monotonic() + FLUSH_SECONDS
        for table in self.writers.values():
            table.flush()

    def run(self) -> Outcome:
        """Train to the end, to divergence, or to the first ``stop``."""
        self.ticked = time.perf_counter()
        self.built.model.train()
        self.outcome.steps_done = self.first
        batch = self.batch(self.first)
        for step in range(self.first, max(self.updates, 1)):
            if self.stop():
                self._interrupt(step)
                break
            if not self._probe(step, *batch):
                break
            self.pending.append(self._step(step, *batch))
            batch = self.batch(step + 1)
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
        if self.prober is None or not self.is_recorded(step):
            return True
        if not self._settle(0):
            return False
        began = time.perf_counter()
        self.writers["probes"].append(self.prober.take(step, x_BT, y_BT))
        seconds = time.perf_counter() - began
        self.outcome.record_seconds += seconds
        log.info("probes of step %d took %.1f s", step, seconds)
        return True

    def _keep_safe(self, done: int) -> None:
        every = self.train["checkpoint_every"]
        if every and done % every == 0 and done < self.updates:
            if self._settle(0):
                self._save(done)
        elif done % self.record["flush_every"] == 0 or time.monotonic() > self.flush_by:
            self._flush()

    def _step(self, step: int, x_BT: Tensor, y_BT: Tensor) -> Step:
        built, began = self.built, time.perf_counter()
        recorder = built.recorder if self.is_recorded(step) or self.ring.maxlen else None
        every = self.train["eval_every"]
        val_loss = self.validate() if every and step % every == 0 else None
        scale = built.loss_scale.scale.clone()
        if recorder:
            recorder.start()
        kept = [b.clone() for b in built.model.buffers()]
        loss = self.forward_backward(x_BT, y_BT, step, built.recorder)
        if recorder:
            recorder.gradients(float(scale))
        grads = built.optimizer.gradients(scale)
        norm = total_norm(grads)
        clip = self._clip(grads, norm)
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

    def _update(self, step: int, left_out: Tensor, recorder: Recorder | None) -> Taken | None:
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

    def apply(self, step: int, scale: Tensor) -> None:
        """Make the update that belongs to the pass just made, whatever it holds."""
        grads = self.built.optimizer.gradients(scale)
        self._clip(grads, total_norm(grads))
        self.built.optimizer.step(step, torch.zeros((), device=self.built.device))

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
            loss, norm, clip, scale, bad, left_out, diverged = step.values.tolist()
            self._write(step, loss, norm, clip, scale, bool(left_out))
            if diverged:
                self.pending.clear()
                self._diverge(step)
                return False
            if bad and self.policy != "stop" and self.outcome.first_bad is None:
                self.outcome.first_bad = self._name_first_bad(step)
        return True

    def _write(
        self, step: Step, loss: float, norm: float, clip: float, scale: float, skipped: bool
    ) -> None:
        tokens = self.train["batch_size"] * self.built.config["model"]["context"]
        seconds = time.perf_counter() - step.began
        record_s = step.taken.seconds if step.taken else 0.0
        row = {
            "run": self.run_hash,
            "step": step.number,
            "tokens": step.number * tokens,
            "loss": loss,
            "val_loss": step.val_loss,
            "lr": learning_rate(self.train, step.number) if self.updates else 0.0,
            "grad_norm": norm,
            "clip_factor": clip,
            "loss_scale": scale,
            "skipped": skipped,
            "spike": self._spiked(loss, norm),
            "step_s": seconds,
            "record_s": record_s,
        }
        self.steps.append({name: [value] for name, value in row.items()})
        if step.taken is not None and self.is_recorded(step.number):
            self.layers.append(self.rows(step.taken, step.number))
        elif step.taken is not None:
            self.ring.append((step.number, step.taken))
        self.outcome.steps_done = min(step.number + 1, self.updates)
        self.outcome.final_loss = loss
        self.outcome.record_seconds += record_s
        if (now := time.monotonic()) - self.reported > REPORT_SECONDS:
            self.reported = now
            shown = {k: row[k] for k in ("step", "loss", "grad_norm", "val_loss")}
            self.report({**shown, "steps": self.updates, "tokens_per_s": tokens / seconds})

    def rows(self, taken: Taken, step: int) -> Rows:
        return taken.rows(run=self.run_hash, step=step)

    def _spiked(self, loss: float, norm: float) -> bool:
        spiked = False
        if len(self.recent) >= SPIKE_LEAST:
            usual_loss, usual_norm = (median(v) for v in zip(*self.recent, strict=True))
            spiked = loss > usual_loss + SPIKE_LOSS or norm > usual_norm * SPIKE_GRADIENT
        if math.isfinite(loss) and math.isfinite(norm):
            self.recent.append((loss, norm))
        return spiked

    # Ends ------------------------------------------------------------------------------------

    def _interrupt(self, step: int) -> None:
        if self._settle(0):
            self._save(step)
            self.outcome.status = "interrupted"
            self.outcome.text = f"interrupted before step {step}"

    def _diverge(self, step: Step) -> None:
        self.outcome.status = "diverged"
        self.outcome.steps_done = step.number  # its own update was left out
        found = autopsy.of_step(self, step.number, step.scale)
        where = f"step {found['step']}: first non-finite {autopsy.spell(found)}"
        self.outcome.first_bad, self.outcome.text = found, f"diverged at {where}"

    def _name_first_bad(self, step: Step) -> dict[str, Any]:
        """The first non-finite tensor of a step whose update was dropped or made all the same."""
        # Under these two the weights may have moved on since, and the pass cannot be repeated.
        moved = self.policy == "continue" or (self.policy == "skip" and self.lag)
        found = None
        if not moved and not autopsy.records_all(self.built):
            found = first_bad(autopsy.whole(self, step.number, step.scale))
        elif step.taken:
            found = first_bad(self.rows(step.taken, step.number))
        return found or autopsy.nowhere(self, step.number)

    def rewind(self, end: int, record: bool) -> None:
        """Go back to the last checkpoint or the start, and make the steps before ``end`` again.

        If ``record``, write the rows of those that were not recorded the first time.
        """
        state = checkpoint.load(self.folder / CHECKPOINT_FILE, self.run_hash, self.built.device)
        self.diverged.fill_(False)
        self.ring = deque(maxlen=int(record))  # a ring makes every step a recorded one
        first = checkpoint.unpack(self.built, state or checkpoint.start(self.built))
        for step in range(first, end):
            taken = self._step(step, *self.batch(step)).taken
            if record and taken is not None and not self.is_recorded(step):
                self.layers.append(self.rows(taken, step))

    def _finish(self) -> None:
        outcome = self.outcome
        if outcome.status == "completed":
            outcome.final_val_loss = self.validate()
            if not math.isfinite(outcome.final_val_loss):
                outcome.status = "diverged"
                outcome.text = "diverged: the last validation loss is not finite"
                if self.policy != "continue":  # else it broke long ago, and has been named then
                    found = autopsy.of_end(self)
                    outcome.first_bad = outcome.first_bad or found
                    outcome.text += f", nor is {autopsy.spell(found)}"
        if outcome.status != "interrupted":
            if outcome.status == "completed" and self.train["keep_checkpoint"]:
                self._save(self.updates)
            else:
                (self.folder / CHECKPOINT_FILE).unlink(missing_ok=True)
        log.info("%s after %d steps", outcome.text, outcome.steps_done)
