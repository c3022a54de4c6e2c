"""What one or several processes measured in a step -> its statistics in the order of execution."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stability.config.names import Key
from stability.recording import stats
from stability.recording.external.passes import Measured, Pass
from stability.recording.recorded_step import RecordedStep, Slot
from stability.results.statistics import INDEX

SAME = 1e-5
"""Relative difference below which two processes hold the same tensor, not two parts of one."""


@dataclass(frozen=True)
class Part:
    """What one process measured of one tensor."""

    measured: Measured
    order: tuple[int, ...]
    """Sort key: the order of execution."""

    def on_cpu(self) -> "Part":
        """The part, ready to be sent to another process."""
        vector, tokens = self.measured
        return Part((vector.cpu(), None if tokens is None else tokens.cpu()), self.order)


Parts = dict[Slot, Part]


def parts_of(passes: Sequence[Pass], parameters: Mapping[tuple[str, Key], Tensor]) -> Parts:
    """What this process measured of each tensor, its passes merged.

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
    for slot, its in several.items():
        found[slot] = Part(_merged(its), order[slot])
    last = 1 + max(of_backward.values(), default=0)
    for number, ((kind, key), vector) in enumerate(parameters.items()):
        at = of_backward.get(key[:2], last)
        place = {"weight": (0, number), "weight_grad": (2, at, 1, number)}.get(kind, (3, number))
        found[kind, (key,)] = Part((vector, None), place)
    return found


def _merged(several: Sequence[Measured]) -> Measured:
    """The statistics of several tensors together, and the rms of all their tokens."""
    tokens = [rms for _, rms in several if rms is not None]
    return stats.merge_passes(several), torch.cat(tokens) if tokens else None


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
    of_batch: dict[Slot, dict[Hashable, list[Measured]]] = {}
    for batch, measured in parts:
        for slot, part in measured.items():
            order.setdefault(slot, part.order)
            of_batch.setdefault(slot, {}).setdefault(batch, []).append(part.measured)
    if not order:
        return None
    slots = sorted(order, key=order.__getitem__)
    vectors = [_over_processes(list(of_batch[slot].values())) for slot in slots]
    return RecordedStep(torch.stack(vectors), slots, scales, 0.0)


def _over_processes(of_batches: Sequence[Sequence[Measured]]) -> Tensor:
    """Merge what processes hold of one tensor, grouped by batch."""
    return _merged([one for several in of_batches for one in _distinct(several)])[0]


def _distinct(several: Sequence[Measured]) -> list[Measured]:
    """Of processes with the same batch, one if they hold the same tensor; else all of them.

    Parts of a tensor that says nothing of its axes may be parts of each token: then neither the
    share of position 0 nor the median over tokens is known.
    """
    vectors = torch.stack([vector for vector, _ in several])
    shown = [INDEX[name] for name in ("numel", "nonfinite", "absmax", "mean", "var", "rms")]
    near = torch.isclose(vectors[:, shown], vectors[:1, shown], rtol=SAME, atol=0, equal_nan=True)
    if len(several) == 1 or bool(near.all()):
        return [several[0]]
    unknown = [INDEX["first_share"], INDEX["token_rms_median"]]
    if all(rms is None for _, rms in several):
        return list(several)
    vectors[:, unknown] = torch.nan
    return [(vector, None) for vector in vectors]
