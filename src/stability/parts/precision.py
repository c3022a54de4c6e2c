"""What ``dtype`` means, and the loss scale.

``fp64 fp32 bf16 fp16``: parameters, activations and gradients are kept in that format.
``amp_bf16 amp_fp16``: fp32 parameters under autocast. Norms compute in at least fp32 and the loss
is taken of upcast logits in every case; the optimizer's state is `stability.model.optim`'s concern.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from stability.config.knobs import DTYPES


class Precision(NamedTuple):
    """A number format for parameters and, under autocast, another for matrix products."""

    param: torch.dtype
    autocast: torch.dtype | None = None

    @property
    def compute(self) -> torch.dtype:
        """The format whose range and precision limit the run."""
        return self.autocast or self.param

    @property
    def at_least_fp32(self) -> torch.dtype:
        """The format of parameters, or fp32 where that is narrower."""
        return torch.promote_types(self.param, torch.float32)

    def context(self, device: torch.device) -> AbstractContextManager[object]:
        """The autocast context of a forward pass; does nothing without autocast."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, self.autocast)


PRECISIONS = {
    name: Precision(
        getattr(torch, dtype.param), getattr(torch, dtype.autocast) if dtype.autocast else None
    )
    for name, dtype in DTYPES.items()
}


class LossScale:
    """The factor on the loss, kept on the device: constant, or dynamic.

    Dynamic (arXiv:1710.03740): halved when a gradient is not finite (the step is skipped), doubled
    after ``growth_interval`` good steps in a row. torch's GradScaler refuses fp16 gradients, and
    ``dtype=fp16`` has such gradients. A scale below 1 means that no scale helps: the run
    has diverged.
    """

    initial, growth_interval = 2.0**16, 2000

    def __init__(self, setting: str | float, device: torch.device) -> None:
        self.dynamic = setting == "dynamic"
        start = self.initial if self.dynamic else 1.0 if setting == "none" else float(setting)
        self.scale = torch.tensor(start, dtype=torch.float32, device=device)
        self.good_steps = torch.tensor(0, dtype=torch.int32, device=device)

    @torch.no_grad()
    def update(self, bad: Tensor) -> None:
        """Take note of a step; ``bad`` says, on the device, whether its gradient was not finite."""
        if not self.dynamic:
            return
        streak = torch.where(bad, 0, self.good_steps + 1)
        grow = streak == self.growth_interval
        factor = torch.where(bad, 0.5, torch.where(grow, 2.0, 1.0))
        self.scale.mul_(factor)
        self.good_steps.copy_(torch.where(grow, 0, streak))

    def state_dict(self) -> dict[str, Tensor]:
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.scale.copy_(state["scale"])
        self.good_steps.copy_(state["good_steps"])
