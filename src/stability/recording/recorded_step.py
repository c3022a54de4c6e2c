"""What was recorded of one step: numbers on the device, and the rows that they become."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from stability.config.names import Key
from stability.recording import stats
from stability.results.statistics import columns

Rows = dict[str, Any]
"""Columns of the layers table by name."""

Slot = tuple[str, tuple[Key, ...]]
"""A kind, and the keys that share the tensor: one measurement, a row for each key."""


@dataclass(frozen=True)
class RecordedStep:
    """The statistics of one recorded step, still on the device: a vector for each slot."""

    vectors_NF: Tensor
    slots: list[Slot]
    scales: Mapping[str, float]
    """By kind: the loss scale that its values still carry."""
    seconds: float
    """Host seconds spent on recording the step."""

    def is_bad(self) -> bool:
        """Whether a tensor held a non-finite entry. Waits for the device."""
        return bool((self.vectors_NF[:, stats.NONFINITE] > 0).any())

    def norm(self, kind: str) -> float | None:
        """L2 norm of all tensors of a kind together, the loss scale divided out.

        NaN if an entry is not finite; None if nothing of the kind was recorded.
        """
        chosen = [i for i, (its, _) in enumerate(self.slots) if its == kind]
        if not chosen:
            return None
        square = float(stats.square_of(self.vectors_NF[chosen]))
        return math.sqrt(square) / self.scales.get(kind, 1.0)

    def rows(self, **constant: Any) -> Rows:
        """Columns of the layers table. Waits for the device, once.

        Args:
            constant: columns that are the same in every row (run, step).
        """
        slots = [(kind, keys[::-1] if kind == "grad" else keys) for kind, keys in self.slots]
        named = [(kind, key) for kind, keys in slots for key in keys]
        vectors_NF = self.vectors_NF.cpu().double().numpy()
        rows_NF = vectors_NF.repeat([len(keys) for _, keys in slots], axis=0)
        divisor = np.array([self.scales.get(kind, 1.0) for kind, _ in named])
        return {
            **{name: [value] * len(named) for name, value in constant.items()},
            "layer": [key.layer for _, key in named],
            "sublayer": [key.sublayer for _, key in named],
            "site": [key.name for _, key in named],
            "kind": [kind for kind, _ in named],
            **columns(rows_NF, divisor),
        }


def first_bad(rows: Rows) -> dict[str, Any] | None:
    """The first row, in the order of execution, that holds a non-finite entry."""
    bad = np.flatnonzero(rows["nonfinite"])
    if not len(bad):
        return None
    return {k: rows[k][bad[0]] for k in ("step", "layer", "sublayer", "site", "kind")}
