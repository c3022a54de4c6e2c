"""Sends the curated numbers of each step to a dashboard while the recording goes on."""

from collections.abc import Callable, Mapping
from typing import Any

from stability.recording.recorded_step import Rows
from stability.results.curated import curated
from stability.results.run_file import one_line
from stability.results.sinks import Sink

PREFIX = "stability/"
"""Begins the names of the numbers, so that they do not mix with what the loop itself sends."""


class Live:
    """Sends numbers until the writer fails; that is warned of once.

    Args:
        sink: takes the numbers.
        note: takes the warning.
    """

    def __init__(self, sink: Sink, note: Callable[[str], None]) -> None:
        self._sink: Sink | None = sink
        self._note = note

    def send(self, layers: Rows | None, row: Mapping[str, Any]) -> None:
        """Send the numbers of one step.

        Args:
            layers: its rows of the layers table; None if none are written.
            row: its row of the steps table.
        """
        if self._sink is None:
            return
        try:
            numbers = curated(layers, row)
            named = {PREFIX + name: value for name, value in numbers.items()}
            self._sink.scalars(named, row["step"])
        except Exception as error:  # of an external writer, or of its network
            self._sink = None
            self._note(f"also: the writer failed and gets no more numbers: {one_line(error)}")
