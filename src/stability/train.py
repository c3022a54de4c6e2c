"""The loop: step t is the pass with the weights after t updates, and the update that follows it.

Divergence is an outcome, not an error. A flag on the device latches at the first non-finite loss or
gradient and reaches the optimizer, so that the weights of the last good step stay as they were; the
host reads it at once on a CPU and one step late on a GPU, without making the GPU wait.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from stability.build import Built, recorder_of
from stability.model import IGNORED, loss_sum
from stability.optim import learning_rate, total_norm
from stability.recorder import Recorder, Rows, first_bad
from stability.table import Writer

log = logging.getLogger("stability")

Report = Callable[[dict[str, Any]], None]
REPORT_SECONDS = 0.25

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


@dataclass
class Step:
    """A step whose numbers the host has not looked at yet."""

    number: int
    values: Tensor
    ready: Any
    rows: Rows | None
    val_loss: float | None
    began: float
    record_s: float


class Trainer:
    """Trains one run and leaves its rows with the writers.

    Args:
        built: what the config builds.
        run: hash, for the tables.
        layers, steps: writers of the two tables.
        report: called a few times a second with the progress.
        stop: asked before each step whether to break off.
    """

    def __init__(
        self,
        built: Built,
        run: str,
        layers: Writer,
        steps: Writer,
        report: Report,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.built, self.run_hash, self.report, self.stop = built, run, report, stop
        self.layers, self.steps = layers, steps
        self.train = built.config["train"]
        self.updates = self.train["steps"]
        self.first = 0
        self.diverged = torch.tensor(False, device=built.device)
        self.pending: deque[Step] = deque()
        self.recent: deque[tuple[float, float]] = deque(maxlen=SPIKE_WINDOW)
        self.lag = 1 if built.device.type == "cuda" else 0
        self.outcome = Outcome("completed", "completed", 0)
        self.reported = 0.0

    # Batches ---------------------------------------------------------------------------------

    def _batch(self, step: int) -> tuple[Tensor, Tensor]:
        config = self.built.config
        x, y = self.built.source.batch(
            step,
            self.train["batch_size"],
            config["model"]["context"],
            config["seed"],
            config["data"]["pad_share"],
        )
        return self._to_device(x), self._to_device(y)

    def _to_device(self, array: Any) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.built.device.type != "cuda":
            return tensor.to(self.built.device)
        return tensor.pin_memory().to(self.built.device, non_blocking=True)

    # Passes ----------------------------------------------------------------------------------

    def _pass(self, x_BT: Tensor, y_BT: Tensor, step: int, recorder: Recorder) -> Tensor:
        """Forward and backward over all parts of a batch; each part counts by its tokens."""
        built = self.built
        if built.config["model"]["dropout"] > 0:
            # A seed for each step: a resumed or repeated step drops what it dropped the first time.
            torch.manual_seed(built.config["seed"] * 1_000_003 + step)
        built.optimizer.zero_grad()
        tokens = (y_BT != IGNORED).sum()
        parts = self.train["accumulate"]
        total = torch.zeros((), device=built.device, dtype=torch.float64 if self._fp64 else None)
        for x, y in zip(x_BT.tensor_split(parts), y_BT.tensor_split(parts), strict=True):
            with built.precision.context(built.device):
                loss = loss_sum(built.model(x), y) / tokens
            (loss * built.loss_scale.scale).backward()
            recorder.pass_done()
            total += loss.detach()
        return total

    @property
    def _fp64(self) -> bool:
        return self.built.precision.param == torch.float64

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss in nats per token over ``train.eval_batches`` fixed batches."""
        built, config = self.built, self.built.config
        built.model.eval()
        total, count = 0.0, 0
        for index in range(self.train["eval_batches"]):
            x, y = built.source.val_batch(
                index,
                self.train["batch_size"],
                config["model"]["context"],
                config["data"]["pad_share"],
            )
            with built.precision.context(built.device):
                loss = loss_sum(built.model(self._to_device(x)), targets := self._to_device(y))
            total += float(loss)
            count += int((targets != IGNORED).sum())
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
        last = max(self.updates - 1, 0)
        return step % self.built.config["record"]["every"] == 0 or step == last

    def run(self) -> Outcome:
        """Train to the end, to divergence, or to the first ``stop``."""
        began = time.perf_counter()
        self.built.model.train()
        batch = self._batch(self.first)
        for step in range(self.first, max(self.updates, 1)):
            if self.stop():
                self.outcome.status, self.outcome.text = (
                    "interrupted",
                    f"interrupted at step {step}",
                )
                break
            self.pending.append(self._step(step, *batch))
            batch = self._batch(step + 1)
            if not self._settle(self.lag):
                break
            if (step + 1) % self.built.config["record"]["flush_every"] == 0:
                self.layers.flush()
                self.steps.flush()
        self._settle(0)
        self._finish()
        self.outcome.seconds = time.perf_counter() - began
        return self.outcome

    def _step(self, step: int, x_BT: Tensor, y_BT: Tensor) -> Step:
        built, began = self.built, time.perf_counter()
        recorder = built.recorder if self.is_recorded(step) else None
        every = self.train["eval_every"]
        val_loss = self.validate() if every and step % every == 0 else None
        scale = built.loss_scale.scale.clone()
        if recorder:
            recorder.start()
        loss = self._pass(x_BT, y_BT, step, built.recorder)
        if recorder:
            recorder.gradients(float(scale))
        grads = built.optimizer.gradients(scale)
        norm = total_norm(grads)
        clip = self._clip(grads, norm)
        bad = self._judge(loss, norm)
        before = recorder.snapshot() if recorder and self.updates else None
        if self.updates:
            built.optimizer.step(step, (bad | self.diverged).to(torch.float32))
        rows, record_s = None, 0.0
        if recorder:
            if before is not None:
                skipped = bool(bad | self.diverged)
                recorder.updates(before, None if skipped else built.optimizer.asked(before))
            rows = recorder.rows(run=self.run_hash, step=step)
            record_s = recorder.seconds
        numbers = (loss, norm, clip, scale, bad, self.diverged)
        values = torch.stack([n.detach().to(torch.float64) for n in numbers])
        ready = None
        if self.lag:
            values = values.to("cpu", non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
        return Step(step, values, ready, rows, val_loss, began, record_s)

    def _judge(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Whether this step's update must be left out; latches ``diverged`` on the device."""
        scale = self.built.loss_scale
        lost = ~torch.isfinite(loss)
        bad = lost | ~torch.isfinite(norm)
        scale.update(bad)
        hopeless = scale.scale < 1 if scale.dynamic else bad
        self.diverged |= lost | hopeless
        return bad

    def _settle(self, keep: int) -> bool:
        """Let the host look at the steps but the last ``keep``; False where the run diverged."""
        while len(self.pending) > keep:
            step = self.pending.popleft()
            if step.ready is not None:
                step.ready.synchronize()
            loss, norm, clip, scale, bad, diverged = step.values.tolist()
            self._write(step, loss, norm, clip, scale, bool(bad))
            if diverged:
                self.pending.clear()
                self._explain(step)
                return False
        return True

    def _write(
        self, step: Step, loss: float, norm: float, clip: float, scale: float, bad: bool
    ) -> None:
        train, tokens = self.train, self.train["batch_size"] * self.built.config["model"]["context"]
        seconds = time.perf_counter() - step.began
        row = {
            "run": self.run_hash,
            "step": step.number,
            "tokens": step.number * tokens,
            "loss": loss,
            "val_loss": step.val_loss,
            "lr": learning_rate(train, step.number) if self.updates else 0.0,
            "grad_norm": norm,
            "clip_factor": clip,
            "loss_scale": scale,
            "skipped": bad,
            "spike": self._spiked(loss, norm),
            "step_s": seconds,
            "record_s": step.record_s,
        }
        self.steps.append({name: [value] for name, value in row.items()})
        if step.rows is not None:
            self.layers.append(step.rows)
        self.outcome.steps_done = step.number + 1
        self.outcome.final_loss = loss
        self.outcome.record_seconds += step.record_s
        if (now := time.monotonic()) - self.reported > REPORT_SECONDS:
            self.reported = now
            shown = {k: row[k] for k in ("step", "loss", "grad_norm", "val_loss")}
            self.report({**shown, "steps": self.updates, "tokens_per_s": tokens / seconds})

    def _spiked(self, loss: float, norm: float) -> bool:
        spiked = False
        if len(self.recent) >= SPIKE_LEAST:
            usual_loss, usual_norm = (median(v) for v in zip(*self.recent, strict=True))
            spiked = loss > usual_loss + SPIKE_LOSS or norm > usual_norm * SPIKE_GRADIENT
        if math.isfinite(loss) and math.isfinite(norm):
            self.recent.append((loss, norm))
        return spiked

    # Ends ------------------------------------------------------------------------------------

    def _explain(self, step: Step) -> None:
        """Name the first non-finite tensor of a diverged step; run its pass again if need be."""
        found = first_bad(step.rows) if step.rows is not None else None
        if found is None:
            rows = self._inspect(step.number)
            found = first_bad(rows)
            if step.rows is None:
                self.layers.append(rows)
        found = found or {
            "step": step.number,
            "layer": self.built.model.depth,
            "sublayer": "head",
            "site": "loss",
            "kind": "act",
        }
        where = "{kind} at layer {layer}, {sublayer}, {site}".format(**found)
        self.outcome.status = "diverged"
        self.outcome.first_bad = found
        self.outcome.text = f"diverged at step {step.number}: first non-finite {where}"

    def _inspect(self, step: int) -> Rows:
        """Every row of a step but its update, whose weights are still what it started from."""
        model = self.built.model
        kept = [b.clone() for b in model.buffers()]
        recorder = recorder_of(self.built.config, model, all_kinds=True)
        recorder.start()
        self._pass(*self._batch(step), step, recorder)
        recorder.gradients(float(self.built.loss_scale.scale))
        rows = recorder.rows(run=self.run_hash, step=step)
        recorder.detach()
        for buffer, value in zip(model.buffers(), kept, strict=True):
            buffer.copy_(value)
        return rows

    def _finish(self) -> None:
        outcome = self.outcome
        if outcome.status == "completed":
            outcome.final_val_loss = self.validate()
            if not math.isfinite(outcome.final_val_loss):
                outcome.status = "diverged"
                outcome.text = "diverged: the validation loss of the final weights is not finite"
        log.info("%s after %d steps", outcome.text, outcome.steps_done)
