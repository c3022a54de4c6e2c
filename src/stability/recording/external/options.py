"""What the user of `record` chooses, checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from stability.config.names import KINDS

StepMode = Literal["updates", "loop"]
"""What ends a step: the updates that the recording sees, or only ``recording.step()``."""


@dataclass(frozen=True)
class Options:
    """How to record; `record` explains each.

    Raises:
        ValueError: one is not legal.
    """

    every: int = 1
    ring: int = 0
    kinds: Sequence[str] = tuple(KINDS)
    token_dim: int = 1
    each_call: bool = False
    heads: bool = False
    steps: StepMode = "updates"
    loss_scale: Callable[[], float] | None = None
    first_step: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.kinds, str) or not self.kinds or set(self.kinds) - set(KINDS):
            raise ValueError(f"kinds={self.kinds!r}: must be a list of {', '.join(KINDS)}")
        for name, least in (("every", 1), ("ring", 0), ("first_step", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r}: must be a whole number >= {least}")
        if self.steps not in get_args(StepMode):
            raise ValueError(f"steps={self.steps}: choose from {', '.join(get_args(StepMode))}")
        if not isinstance(self.token_dim, int):
            raise ValueError(f"token_dim={self.token_dim}: must be a whole number")
        if self.loss_scale is not None and not callable(self.loss_scale):
            reason = "must be a function, e.g. scaler.get_scale"
            raise ValueError(f"loss_scale={self.loss_scale}: {reason}")

    def records(self, step: int) -> bool:
        """Whether the step is recorded, if only for the ring."""
        return step % self.every == 0 or self.ring > 0
