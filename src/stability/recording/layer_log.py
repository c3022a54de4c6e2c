"""Which recorded steps reach the layers table: those at fixed steps, and those before a failure.

A training run and an external loop write their layers through the same `LayerLog`.
"""

from collections import deque

from stability.recording.recorded_step import RecordedStep, Rows
from stability.results.parquet import Writer


class LayerLog:
    """Writes recorded steps to the layers table of a run, or keeps them in a ring.

    Args:
        writer: of the table ``layers``.
        run: hash, for the table.
        every: a step is written if it is a multiple of this.
        ring: how many of the other steps are kept, on the device; 0 keeps none, and then the other
            steps need not be recorded.
        last: one more step that is written.
    """

    def __init__(
        self, writer: Writer, run: str, every: int, ring: int, last: int | None = None
    ) -> None:
        self.writer, self.run, self.every, self.last = writer, run, every, last
        self._ring: deque[tuple[int, RecordedStep]] = deque(maxlen=ring)

    @property
    def has_ring(self) -> bool:
        """Whether steps are kept that are not written."""
        return bool(self._ring.maxlen)

    def is_written(self, step: int) -> bool:
        """Whether the step is written even if nothing goes wrong."""
        return step % self.every == 0 or step == self.last

    def is_recorded(self, step: int) -> bool:
        """Whether the step is recorded, if only for the ring."""
        return self.is_written(step) or self.has_ring

    def rows(self, step: int, recorded: RecordedStep) -> Rows:
        """Columns of the layers table. Waits for the device."""
        return recorded.rows(run=self.run, step=step)

    def add(self, step: int, recorded: RecordedStep) -> Rows | None:
        """Write the step if `is_written`, and return its rows; else keep it in the ring."""
        if not self.is_written(step):
            self._ring.append((step, recorded))
            return None
        rows = self.rows(step, recorded)
        self.write(rows)
        return rows

    def write(self, rows: Rows) -> None:
        """Write rows, whatever their step."""
        self.writer.append(rows)

    def write_ring(self, before: int) -> None:
        """Write the steps of the ring that come before a step, and empty the ring."""
        for step, recorded in self._ring:
            if step < before:
                self.write(self.rows(step, recorded))
        self._ring.clear()
