"""What decides that a step is bad, that its update is left out, and that the run has diverged."""

import torch
from torch import Tensor

from stability.parts.precision import LossScale


def judge(
    loss: Tensor, norm: Tensor, loss_scale: LossScale, policy: str, diverged: Tensor
) -> tuple[Tensor, Tensor]:
    """Judge a step on the device, without waiting for it.

    A step is bad if its loss or its gradient norm is not finite. Under a dynamic loss scale a
    non-finite gradient with a finite loss is a skipped step, until the scale falls below 1.

    Args:
        loss: of the step.
        norm: of all gradients, before clipping.
        loss_scale: updated here; a bad step lowers a dynamic one.
        policy: ``on_nonfinite``: stop, skip or continue.
        diverged: set to true, in place, where the run has diverged; it stays so.

    Returns:
        Whether the step is bad, and whether its update is left out.
    """
    not_finite = ~torch.isfinite(loss)
    bad = not_finite | ~torch.isfinite(norm)
    loss_scale.update(bad)
    if policy == "continue":
        return bad, torch.zeros_like(bad)
    if policy == "stop":
        hopeless = loss_scale.scale < 1 if loss_scale.dynamic else bad
        diverged |= not_finite | hopeless
    return bad, bad | diverged
