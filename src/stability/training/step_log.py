"""What the host writes down of each step: its rows, whether it spiked, and how far the run is."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from torch import Tensor

from stability.model.build import Built
from stability.model.optim import learning_rate
from stability.recording.recorded_step import RecordedStep, Rows
from stability.results.parquet import Writer

Report = Callable[[dict[str, Any]], None]
REPORT_SECONDS = 0.25
FLUSH_SECONDS = 60.0
"""Rows wait no longer than this for their way to disk, however long a step takes."""

SPIKE_WINDOW, SPIKE_LEAST = 50, 10
SPIKE_LOSS, SPIKE_GRADIENT = 1.0, 10.0
"""A step is a spike where, against the medians of the last 50 steps (at least 10), the loss is more
than 1 nat higher or the gradient norm more than 10 times larger."""


@dataclass
class Step:
    """A step whose numbers the host has not looked at yet."""

    number: int
    scale: Tensor
    values: Tensor
    ready: Any
    taken: RecordedStep | None
    val_loss: float | None
    began: float


class Numbers(NamedTuple):
    """What ``Step.values`` holds."""

    loss: float
    grad_norm: float
    clip_factor: float
    loss_scale: float
    bad: float
    left_out: float
    diverged: float


class Journal:
    """Writes the rows of one run.

    Args:
        built: what the config builds.
        run: hash, for the tables.
        writers: of the tables ``layers``, ``steps`` and, where probes are asked for, ``probes``.
        report: called a few times a second with the progress.
    """

    def __init__(
        self, built: Built, run: str, writers: Mapping[str, Writer], report: Report
    ) -> None:
        self.run, self.writers, self.report = run, writers, report
        self.layers = writers["layers"]
        self.train, self.record = built.config.train, built.config.record
        self.tokens = self.train.batch_size * built.config.model.context
        self.updates = self.train.steps
        self.recent: deque[tuple[float, float]] = deque(maxlen=SPIKE_WINDOW)
        self.ring: deque[tuple[int, RecordedStep]] = deque(maxlen=self.record.ring)
        self.reported, self.flush_by = 0.0, time.monotonic() + FLUSH_SECONDS

    def is_recorded(self, step: int) -> bool:
        """Whether the step's rows go to disk even if nothing goes wrong."""
        return step % self.record.every == 0 or step == max(self.updates - 1, 0)

    def watches(self, step: int) -> bool:
        """Whether the step is recorded, be it only for the ring."""
        return self.is_recorded(step) or bool(self.ring.maxlen)

    def keep(self, first: int) -> None:
        """Drop the rows that a run which goes on at this step will write again."""
        # A step that was recorded only because it was the last is no longer the last.
        for name, table in self.writers.items():
            table.keep(range(0, first, 1 if name == "steps" else self.record.every))

    def flush(self) -> None:
        """Bring every row to disk."""
        self.flush_by = time.monotonic() + FLUSH_SECONDS
        for table in self.writers.values():
            table.flush()

    def is_due(self, done: int) -> bool:
        """Whether rows have waited long enough."""
        return done % self.record.flush_every == 0 or time.monotonic() > self.flush_by

    def write(self, step: Step, numbers: Numbers) -> None:
        """Write the step's row and, if it is their turn, those of its layers; else they wait."""
        seconds = time.perf_counter() - step.began
        row = {
            "run": self.run,
            "step": step.number,
            "tokens": step.number * self.tokens,
            "loss": numbers.loss,
            "val_loss": step.val_loss,
            "lr": learning_rate(self.train, step.number) if self.updates else 0.0,
            "grad_norm": numbers.grad_norm,
            "clip_factor": numbers.clip_factor,
            "loss_scale": numbers.loss_scale,
            "skipped": bool(numbers.left_out),
            "spike": self._spiked(numbers.loss, numbers.grad_norm),
            "step_s": seconds,
            "record_s": step.taken.seconds if step.taken else 0.0,
        }
        self.writers["steps"].append({name: [value] for name, value in row.items()})
        if step.taken is not None and self.is_recorded(step.number):
            self.layers.append(self.rows(step.taken, step.number))
        elif step.taken is not None:
            self.ring.append((step.number, step.taken))
        if (now := time.monotonic()) - self.reported > REPORT_SECONDS:
            self.reported = now
            shown = {k: row[k] for k in ("step", "loss", "grad_norm", "val_loss")}
            self.report({**shown, "steps": self.updates, "tokens_per_s": self.tokens / seconds})

    def rows(self, taken: RecordedStep, step: int) -> Rows:
        """Rows of the layers table."""
        return taken.rows(run=self.run, step=step)

    def _spiked(self, loss: float, norm: float) -> bool:
        spiked = False
        if len(self.recent) >= SPIKE_LEAST:
            usual_loss, usual_norm = (median(v) for v in zip(*self.recent, strict=True))
            spiked = loss > usual_loss + SPIKE_LOSS or norm > usual_norm * SPIKE_GRADIENT
        if math.isfinite(loss) and math.isfinite(norm):
            self.recent.append((loss, norm))
        return spiked
