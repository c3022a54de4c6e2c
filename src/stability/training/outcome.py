"""How a training ended."""

from dataclasses import dataclass
from typing import Any

from stability.training.failure import FirstBad, describe

CARRIED = ("first_bad", "seconds", "record_seconds")
"""Fields of an outcome that a resumed run starts with."""


@dataclass
class Outcome:
    """How a training ended, as run.json says it."""

    status: str
    text: str
    steps_done: int
    final_loss: float | None = None
    final_val_loss: float | None = None
    first_bad: FirstBad | None = None
    seconds: float = 0.0
    record_seconds: float = 0.0

    def carried(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {name: getattr(self, name) for name in CARRIED}

    def resume(self, carried: dict[str, Any]) -> None:
        """Start with what a checkpoint kept."""
        for name in CARRIED:
            setattr(self, name, carried[name])

    def diverged_at(self, found: FirstBad, validating: bool) -> None:
        """Name the first non-finite tensor, of a step or of the validation after the last one."""
        if validating:
            self.first_bad = self.first_bad or found
            self.text += f", nor is {describe(found)}"
        else:
            self.first_bad = found
            self.text = f"diverged at step {found['step']}: first non-finite {describe(found)}"
