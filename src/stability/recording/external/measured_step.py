"""What one or several processes measured in a step -> its statistics in the order of execution."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from stability.config.names import Key
from stability.recording import stats
from stability.recording.external.passes import Measured, Pass
from stability.recording.recorded_step import RecordedStep, Slot
from stability.results.statistics import INDEX

SAME = 1e-5
"""Relative difference below which two processes hold the same tensor, not two parts of one."""


class Clipping(NamedTuple):
    """Sums of squares of the gradients of the parameters that optimizers updated."""

    before: float = 0.0
    """As backward passes left them, times the square of the loss scale."""
    after: float = 0.0
    """As the optimizers got them, the loss scale divided out."""

    def factor(self, scale: float) -> float | None:
        """What clipping multiplied them by; None where that is not known."""
        if not self.before > 0 or not math.isfinite(self.before):
            return None
        return scale * math.sqrt(self.after / self.before)


@dataclass(frozen=True)
class Part:
    """What one process measured of one tensor."""

    measured: tuple[Measured, ...]
    """For each pass."""
    order: tuple[int, ...]
    """Sort key: the order of execution."""

    def on_cpu(self) -> "Part":
        """The part, ready to be sent to another process."""
        moved = [(v.cpu(), None if rms is None else rms.cpu()) for v, rms in self.measured]
        return Part(tuple(moved), self.order)


Parts = dict[Slot, Part]


def parts_of(passes: Sequence[Pass], parameters: Mapping[tuple[str, Key], Tensor]) -> Parts:
    """What this process measured of each tensor, pass by pass.

    Args:
        passes: of the step.
        parameters: statistics of parameters, by kind and key.
    """
    found: Parts = {}
    calls = sorted((call for p in passes for call in p.calls), key=lambda call: call.order)
    of_backward: dict[tuple[int, str], int] = {}
    several: dict[Slot, list[Measured]] = {}
    order: dict[Slot, tuple[int, ...]] = {}
    for call in calls:
        for kind, measured in (("act", call.act), ("grad", call.grad)):
            if measured is not None:
                slot: Slot = (kind, (call.key,))
                several.setdefault(slot, []).append(measured)
                order.setdefault(
                    slot, (1, call.order) if kind == "act" else (2, call.grad_order, 0)
                )
        if call.grad is not None:
            of_backward.setdefault(call.key[:2], call.grad_order)
    found |= {slot: Part(tuple(its), order[slot]) for slot, its in several.items()}
    last = 1 + max(of_backward.values(), default=0)
    for number, ((kind, key), vector) in enumerate(parameters.items()):
        at = of_backward.get(key[:2], last)
        place = {"weight": (0, number), "weight_grad": (2, at, 1, number)}.get(kind, (3, number))
        found[kind, (key,)] = Part(((vector, None),), place)
    return found


def step_of(
    parts: Sequence[tuple[Hashable, Parts]], scales: Mapping[str, float]
) -> RecordedStep | None:
    """The statistics of a step, over all processes; None where nothing was measured.

    Processes with the same batch either hold the same tensor, which counts once, or disjoint parts
    of it, which merge. Processes with different batches merge.

    Args:
        parts: for each process a name of its batch, and what it measured.
        scales: by kind: what the gradients were multiplied by.
    """
    order: dict[Slot, tuple[int, ...]] = {}
    of_batch: dict[Slot, dict[Hashable, list[tuple[Measured, ...]]]] = {}
    for batch, measured in parts:
        for slot, part in measured.items():
            order.setdefault(slot, part.order)
            of_batch.setdefault(slot, {}).setdefault(batch, []).append(part.measured)
    if not order:
        return None
    slots = sorted(order, key=order.__getitem__)
    vectors = [_over_processes(list(of_batch[slot].values())) for slot in slots]
    return RecordedStep(torch.stack(vectors), slots, scales, 0.0)


def _over_processes(of_batches: Sequence[Sequence[tuple[Measured, ...]]]) -> Tensor:
    """Merge what processes hold of one tensor, grouped by batch."""
    return stats.merge_passes([one for several in of_batches for one in _distinct(several)])


def _distinct(several: Sequence[tuple[Measured, ...]]) -> list[Measured]:
    """Of processes with the same batch, one if they hold the same tensor; else all of them.

    Parts of a tensor that says nothing of its axes may be parts of each token: then neither the
    share of position 0 nor the median over tokens is known.
    """
    every = [one for its in several for one in its]
    if len(several) == 1:
        return every
    vectors = torch.stack([stats.merge_passes([(v, None) for v, _ in its]) for its in several])
    shown = [INDEX[name] for name in ("numel", "nonfinite", "absmax", "mean", "var", "rms")]
    near = torch.isclose(vectors[:, shown], vectors[:1, shown], rtol=SAME, atol=0, equal_nan=True)
    if bool(near.all()):
        return list(several[0])
    if all(rms is None for _, rms in every):
        return every
    vectors[:, [INDEX["first_share"], INDEX["token_rms_median"]]] = torch.nan
    return [(vector, None) for vector in vectors]
