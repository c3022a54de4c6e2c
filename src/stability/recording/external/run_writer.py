"""The folder of an external run: its config, its run.json, and the rows of its steps."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from stability.recording.layer_log import LayerLog
from stability.recording.machine import finfo
from stability.recording.recorded_step import RecordedStep, Rows, first_bad
from stability.results import schema
from stability.results.atomic import write_text
from stability.results.parquet import Writer, run_metadata
from stability.results.run_file import RunFile, now

FLUSH_STEPS, FLUSH_SECONDS = 20, 30.0
"""Rows reach the disk after so many recorded steps, or after so many seconds."""


class RunWriter:
    """Writes an external run.

    Args:
        folder: of the run.
        state: what run.json says; of a run that is continued, what it said before.
        config: of the run, but for the format of activations.
        every, ring: see `LayerLog`.
        format_of: names the number format of activations, given that of autocast.
        first_step: rows of this step and later ones that the folder holds are dropped.
    """

    def __init__(
        self,
        folder: Path,
        state: RunFile,
        config: Mapping[str, Any],
        every: int,
        ring: int,
        format_of: Callable[[torch.dtype | None], tuple[str, torch.dtype]],
        first_step: int = 0,
    ) -> None:
        self.folder, self.state, self._config, self._format_of = folder, state, config, format_of
        bad = state.first_bad
        self.first_bad = bad if bad and bad["step"] < first_step else None
        self.written: Rows | None = None
        """Rows of the layers table that the current step has."""
        self.recorded = 0
        """Number of steps with rows in the layers table, or in the ring."""
        self._tables = {name: Writer(folder, name, {}) for name in ("layers", "steps")}
        self._layers = LayerLog(self._tables["layers"], state.run, every, ring)
        self._unflushed, self._flush_by = 0, time.monotonic() + FLUSH_SECONDS
        self._began = time.perf_counter() - (state.seconds or 0.0)
        self._autocast: torch.dtype | None = None
        self._write_config()
        for table in self._tables.values():
            table.keep(range(first_step))
        self._write_state()

    def describe(self, autocast: torch.dtype | None) -> None:
        """Say in the config which format activations have."""
        if autocast not in (None, self._autocast):
            self._autocast = autocast
            self._write_config()

    def add_layers(self, step: int, recorded: RecordedStep) -> None:
        """Write the step if ``every`` says so or if it is not finite; else keep it in the ring."""
        self.recorded += 1
        self._unflushed += 1
        if self.first_bad is not None or not recorded.is_bad():
            self.written = self._layers.add(step, recorded)
            return
        rows = self._layers.rows(step, recorded)
        self.first_bad = first_bad(rows)
        self._layers.write_ring(before=step)
        self._layers.write(rows)
        self.written = rows
        self._unflushed = FLUSH_STEPS

    def end_step(self, row: Mapping[str, Any]) -> None:
        """Write the row of a step, and bring rows to disk if it is time."""
        of_run = {"run": self.state.run, **row}
        self._tables["steps"].append({name: [value] for name, value in of_run.items()})
        self.written = None
        self.state.steps_done = row["step"] + 1
        self.state.record_seconds = (self.state.record_seconds or 0.0) + row["record_s"]
        if self._unflushed >= FLUSH_STEPS or time.monotonic() > self._flush_by:
            self.flush()

    def flush(self) -> None:
        """Bring every row, and what run.json says, to disk."""
        self._unflushed, self._flush_by = 0, time.monotonic() + FLUSH_SECONDS
        for table in self._tables.values():
            table.flush()
        self._write_state()

    def close(self, status: str, error: BaseException | None) -> None:
        """Write what is left, compact the tables, and say how the run ended."""
        if error is not None:
            self.state.fail(error, status)
        elif self.state.error is None:
            self.state.status = self.state.outcome = status
            self.state.finished = now()
        for table in self._tables.values():
            table.close()
        self._write_state()

    def _write_config(self) -> None:
        name, format_ = self._format_of(self._autocast)
        config = {**self._config, "dtype": name}
        self.state.finfo = finfo(name, format_)
        for table in self._tables.values():
            table.describe(run_metadata(config, self.state.run))
        write_text(self.folder / schema.CONFIG_FILE, yaml.safe_dump(config, sort_keys=False))

    def _write_state(self) -> None:
        self.state.first_bad = self.first_bad
        self.state.seconds = time.perf_counter() - self._began
        self.state.write(self.folder)
