"""A recording in somebody else's loop: counts its steps and writes their rows."""

import json
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from stability.recording.recorded_step import Taken, first_bad
from stability.recording.recorder import Recorder
from stability.results import schema
from stability.results.parquet import Writer


class Recording:
    """What `record` hands out: counts steps, and takes numbers only the loop knows."""

    def __init__(
        self,
        recorder: Recorder,
        folder: Path,
        run: str,
        config: Mapping[str, Any],
        every: int,
        ring: int,
        loss_scale: Callable[[], float],
    ) -> None:
        self.recorder, self.folder, self.run, self.every = recorder, folder, run, every
        self.ring: deque[tuple[int, Taken]] = deque(maxlen=ring)
        self.step = 0
        self.first_bad: dict[str, Any] | None = None
        self.loss_scale = loss_scale
        metadata = {
            "stability.config": json.dumps(config),
            "stability.run": run,
            "stability.format": str(schema.FORMAT),
        }
        self.layers, self.steps = (Writer(folder, n, metadata) for n in ("layers", "steps"))
        self._row: dict[str, Any] = {}
        self._before: list[Tensor] | None = None
        self._began = time.perf_counter()
        self._scale = 1.0
        recorder.start()

    def log(self, **numbers: float) -> None:
        """Add columns of the steps table (``loss``, ``val_loss``, ``lr``, ...) to the last step.

        Raises:
            KeyError: no such column.
        """
        known = {c.name for c in schema.STEPS}
        for name in numbers:
            if name not in known:
                raise KeyError(f"steps has no column {name}; it has {', '.join(sorted(known))}")
        self._row |= numbers

    def before_pass(self, first: bool) -> None:
        """A forward pass begins, the first of its step or a further one.

        A loss scale that has fallen since the last pass tells that a scaler found the gradients of
        that pass not finite and left its update out: a step of its own.
        """
        scale = self.loss_scale()
        if not first and scale < self._scale:
            if self.recorder.active:
                self.recorder.abandon(self._scale)
            self._end(skipped=True)
        self._scale = scale

    def before_update(self) -> None:
        """The gradients are complete: measure them."""
        if self.recorder.active:
            self.recorder.gradients(self._scale, weight_scale=1.0)
            self._before = self.recorder.snapshot()

    def after_update(self, updated: Collection[int]) -> None:
        """The update of these parameters, by id, is made: measure it, and begin the next step."""
        if self._watched():
            self.recorder.updates(self._before, None, updated)
        self._end(skipped=False)

    def _end(self, skipped: bool) -> None:
        self._finish_row()
        record_s = 0.0
        if self._watched():
            self._keep(self.recorder.take())
            record_s = self.recorder.seconds
        now = time.perf_counter()
        self._row = {"run": self.run, "step": self.step, "record_s": record_s, "skipped": skipped}
        self._row["step_s"], self._began = now - self._began, now
        self.step += 1
        if self._watched():
            self.recorder.start()

    def _watched(self) -> bool:
        return self.step % self.every == 0 or bool(self.ring.maxlen)

    def _keep(self, taken: Taken) -> None:
        """Write the step's rows if it is its turn or if it broke; else they wait in the ring."""
        broke = self.first_bad is None and taken.is_bad()
        if self.step % self.every and not broke:
            self.ring.append((self.step, taken))
            return
        rows = taken.rows(run=self.run, step=self.step)
        self.layers.append(rows)
        if broke:
            self.first_bad = first_bad(rows)
            for step, earlier in self.ring:
                self.layers.append(earlier.rows(run=self.run, step=step))
            self.ring.clear()

    def _finish_row(self) -> None:
        if self._row:
            self.steps.append({name: [value] for name, value in self._row.items()})
            self._row = {}

    def close(self) -> None:
        """Write what is left and compact the tables."""
        self._finish_row()
        self.recorder.detach()
        self.layers.close()
        self.steps.close()
