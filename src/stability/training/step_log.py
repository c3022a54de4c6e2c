"""What a run writes of each step: its row, its layers, whether it is a spike; and the progress."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from stability.config.knobs import Config
from stability.model.optim import learning_rate
from stability.recording.layer_log import LayerLog
from stability.recording.recorded_step import Rows
from stability.results.parquet import Writer
from stability.training.step import StepNumbers, StepResult

Report = Callable[[dict[str, Any]], None]
REPORT_SECONDS = 0.25
FLUSH_SECONDS = 60.0
"""Rows are written to disk at least this often, however long a step takes."""


class SpikeDetector:
    """Tells steps whose loss or gradient norm is far above the recent medians.

    The medians are those of the last `WINDOW` finite steps, of at least `MIN_STEPS`. A step is a
    spike if its loss is more than `LOSS_RISE_NATS` higher than the median or its gradient norm more
    than `GRAD_NORM_FACTOR` times larger.
    """

    WINDOW, MIN_STEPS = 50, 10
    LOSS_RISE_NATS, GRAD_NORM_FACTOR = 1.0, 10.0

    def __init__(self) -> None:
        self.recent: deque[tuple[float, float]] = deque(maxlen=self.WINDOW)
        """Loss and gradient norm of the last finite steps."""

    def is_spike(self, loss: float, grad_norm: float) -> bool:
        """Whether the step is a spike; remembers the step for those that follow."""
        spike = False
        if len(self.recent) >= self.MIN_STEPS:
            usual_loss, usual_norm = (median(v) for v in zip(*self.recent, strict=True))
            spike = (
                loss > usual_loss + self.LOSS_RISE_NATS
                or grad_norm > usual_norm * self.GRAD_NORM_FACTOR
            )
        if math.isfinite(loss) and math.isfinite(grad_norm):
            self.recent.append((loss, grad_norm))
        return spike


class StepLog:
    """Writes the rows of one run.

    Args:
        config: of the run.
        run: hash, for the tables.
        writers: of the tables ``layers``, ``steps`` and, where probes are asked for, ``probes``.
        report: called a few times a second with the progress.
    """

    def __init__(
        self, config: Config, run: str, writers: Mapping[str, Writer], report: Report
    ) -> None:
        self.train, self.record = config.train, config.record
        self.run, self.writers, self.report = run, writers, report
        self.tokens_per_step = config.train.batch_size * config.model.context
        last = max(config.train.steps - 1, 0)
        every, ring = config.record.every, config.record.ring
        self.layers = LayerLog(writers["layers"], run, every, ring, last)
        self.spikes = SpikeDetector()
        self.reported, self.flush_by = 0.0, time.monotonic() + FLUSH_SECONDS
        self.first_logged: tuple[int, float] | None = None
        """Step and clock of the first step logged by this process."""
        self.last_logged = 0.0

    def keep(self, first: int) -> None:
        """Drop the rows that a run which resumes at this step will write again."""
        # A step that was recorded only because it was the last is no longer the last.
        for name, table in self.writers.items():
            table.keep(range(0, first, 1 if name == "steps" else self.record.every))

    def flush(self) -> None:
        """Bring every row to disk."""
        self.flush_by = time.monotonic() + FLUSH_SECONDS
        for table in self.writers.values():
            table.flush()

    def flush_if_due(self, done: int) -> None:
        """Bring every row to disk if ``done`` steps, or the time, say so."""
        if done % self.record.flush_every == 0 or time.monotonic() > self.flush_by:
            self.flush()

    def add_probes(self, rows: Rows) -> None:
        """Write rows of the probes table."""
        self.writers["probes"].append(rows)

    def add(self, result: StepResult, val_loss: float | None, began: float) -> StepNumbers:
        """Write a step's row and, if it is their turn, those of its layers. Waits for the device.

        Args:
            result: of the step.
            val_loss: of the weights that the step started from, where they were validated.
            began: clock (`time.perf_counter`) when the step began.
        """
        step, numbers = result.step, result.numbers()
        # On a GPU the step before may have been logged after this one began: count no second twice.
        began, self.last_logged = max(began, self.last_logged), time.perf_counter()
        row = {
            "run": self.run,
            "step": step,
            "tokens": step * self.tokens_per_step,
            "loss": numbers.loss,
            "val_loss": val_loss,
            "lr": learning_rate(self.train, step) if self.train.steps else 0.0,
            "grad_norm": numbers.grad_norm,
            "clip_factor": numbers.clip_factor,
            "loss_scale": numbers.loss_scale,
            "skipped": numbers.skipped,
            "spike": self.spikes.is_spike(numbers.loss, numbers.grad_norm),
            "step_s": self.last_logged - began,
            "record_s": result.recorded.seconds if result.recorded else 0.0,
        }
        self.writers["steps"].append({name: [value] for name, value in row.items()})
        if result.recorded is not None:
            self.layers.add(step, result.recorded)
        self._report(row)
        return numbers

    def _report(self, row: Mapping[str, Any]) -> None:
        if (now := time.monotonic()) - self.reported > REPORT_SECONDS:
            self.reported = now
            shown = {name: row[name] for name in ("step", "loss", "grad_norm", "val_loss")}
            self.report({**shown, "steps": self.train.steps, "tokens_per_s": self._speed(row)})

    def _speed(self, row: Mapping[str, Any]) -> float:
        """Tokens per second, the mean of the steps since the first one; of that one at first."""
        first = self.first_logged = self.first_logged or (row["step"], self.last_logged)
        steps, seconds = row["step"] - first[0], self.last_logged - first[1]
        return self.tokens_per_step * (steps / seconds if steps else 1 / row["step_s"])
