"""The statistics of a step over all processes of a recording; alone, those of this process."""

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from torch import nn

from stability.recording.external.measured_step import Clipping, Parts, step_of
from stability.recording.external.processes import Batches, Processes
from stability.recording.recorded_step import RecordedStep


@dataclass(frozen=True)
class Gathered:
    """What all processes measured in a step."""

    parts: list[tuple[Hashable, Parts]]
    """For each process the name of its batch, and what it measured."""
    clipping: Clipping
    """Over all processes."""
    batches: int
    """Number of batches: activations' gradients carry it as a factor."""

    def step(self, scale: float) -> RecordedStep | None:
        """The statistics of the step; None where nothing was measured.

        Args:
            scale: what the loss was multiplied by.
        """
        return step_of(self.parts, {"grad": scale * self.batches, "weight_grad": scale})


class Gathering:
    """Brings together what processes measure, in the one that writes.

    Args:
        model: tells how the processes share a batch.
        processes: those that record together; None if this is the only one.
    """

    def __init__(self, model: nn.Module, processes: Processes | None) -> None:
        self._model, self.processes = model, processes
        self._events = 0

    def gather(self, parts: Parts, clipping: Clipping, seconds: float | None) -> Gathered | None:
        """What all processes measured; None in a process that does not write.

        Args:
            parts: what this process measured.
            clipping: of the gradients that this process counts.
            seconds: how long to wait for the others; None: as long as a step may take.
        """
        if self.processes is None:
            return Gathered([(0, parts)], clipping, 1)
        self._events += 1
        batches = Batches.of(self._model)
        mine = batches.mine, {slot: part.on_cpu() for slot, part in parts.items()}, clipping
        if not self.processes.writes:
            self.processes.send(self._events, mine)
            return None
        everywhere = [mine, *self.processes.received(self._events, seconds)]
        clippings = np.array([its for *_, its in everywhere]).sum(axis=0)
        found = [(batch, its) for batch, its, _ in everywhere]
        return Gathered(found, Clipping(*map(float, clippings)), batches.number)
