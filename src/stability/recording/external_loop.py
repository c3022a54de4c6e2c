"""A recording of an external training loop: counts its steps and writes their rows."""

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from stability.recording.layer_log import LayerLog
from stability.recording.recorded_step import RecordedStep, first_bad
from stability.recording.recorder import Recorder
from stability.results import schema
from stability.results.parquet import Writer, run_metadata


class Recording:
    """What `record` yields: counts steps, and takes numbers that only the loop knows.

    Args:
        recorder: at the model's sites.
        folder: of the run.
        run: hash, for the tables.
        config: for the metadata of the tables.
        every: steps between recordings.
        ring: steps before the first non-finite one that are written as well.
        loss_scale: gives the factor on the loss.
    """

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
        self.run = run
        """Hash of the run, as in the tables."""
        self.step = 0
        """Index of the current step: the number of completed steps."""
        self.first_bad: dict[str, Any] | None = None
        """The first non-finite tensor, in the order of execution."""
        self.record_seconds = 0.0
        """Host seconds spent on recording."""
        self._recorder, self._loss_scale = recorder, loss_scale
        metadata = run_metadata(config, run)
        self._tables = {name: Writer(folder, name, metadata) for name in ("layers", "steps")}
        self._layers = LayerLog(self._tables["layers"], run, every, ring)
        self._row: dict[str, Any] = {}
        self._logged: dict[str, float] = {}
        self._has_passed = False
        self._before: list[Tensor] | None = None
        self._began = time.perf_counter()
        self._scale = 1.0
        recorder.start()

    def log(self, **numbers: float) -> None:
        """Add columns of the steps table (``loss``, ``val_loss``, ``lr``, ...) to the last step.

        Before the first step has ended, they are kept for that step.

        Raises:
            KeyError: no such column.
        """
        known = {c.name for c in schema.STEPS}
        for name in numbers:
            if name not in known:
                raise KeyError(f"steps has no column {name}; it has {', '.join(sorted(known))}")
        self._end_skipped_step(self._loss_scale())
        self._logged |= numbers

    def before_pass(self) -> None:
        """A forward pass begins, the first of its step or a further one."""
        scale = self._loss_scale()
        self._end_skipped_step(scale)
        self._scale, self._has_passed = scale, True

    def _end_skipped_step(self, scale: float) -> None:
        """End the current step if a gradient scaler has skipped its update.

        A loss scale below that of the step's passes tells that the scaler found the gradients not
        finite.
        """
        if self._has_passed and scale < self._scale:
            self._recorder.end_passes(self._scale)
            self._end(skipped=True)

    def before_update(self) -> None:
        """The gradients are complete: measure them."""
        if self._layers.is_recorded(self.step):
            self._recorder.gradients(self._scale, weight_scale=1.0)
            self._before = self._recorder.snapshot()

    def after_update(self, updated: Collection[int]) -> None:
        """The parameters with these ids are updated: measure the update, begin the next step."""
        if self._layers.is_recorded(self.step):
            self._recorder.updates(self._before, None, updated)
        self._end(skipped=False)

    def _end(self, skipped: bool) -> None:
        self._write_row()
        record_s = 0.0
        if self._layers.is_recorded(self.step):
            recorded = self._recorder.take()
            self._keep(recorded)
            record_s = recorded.seconds
        now = time.perf_counter()
        self._row = {"run": self.run, "step": self.step, "record_s": record_s, "skipped": skipped}
        self._row["step_s"], self._began = now - self._began, now
        self.record_seconds += record_s
        self.step += 1
        self._has_passed = False
        if self._layers.is_recorded(self.step):
            self._recorder.start()

    def _keep(self, recorded: RecordedStep) -> None:
        """Write the step if ``is_written`` or if it is not finite; else keep it in the ring."""
        if self.first_bad is not None or not recorded.is_bad():
            self._layers.add(self.step, recorded)
            return
        rows = self._layers.rows(self.step, recorded)
        self.first_bad = first_bad(rows)
        self._layers.write_ring(before=self.step)
        self._layers.write(rows)

    def _write_row(self) -> None:
        if self._row:
            row = self._row | self._logged
            self._tables["steps"].append({name: [value] for name, value in row.items()})
            self._row, self._logged = {}, {}

    def close(self) -> None:
        """Remove the recorder's hooks, write what is left and compact the tables."""
        self._write_row()
        self._recorder.detach()
        for table in self._tables.values():
            table.close()
