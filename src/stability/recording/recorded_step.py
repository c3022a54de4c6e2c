"""What a recorder took of one step: numbers on the device, and the rows that they become."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from stability.config.names import Key
from stability.recording import stats

Rows = dict[str, Any]
Slot = tuple[str, tuple[Key, ...]]
"""A kind, and the keys that share the tensor: one measurement, a row for each key."""


@dataclass(frozen=True)
class Taken:
    """The numbers of one recorded step: a row for each slot, its fields, median token, lost."""

    numbers: Tensor
    slots: list[Slot]
    scales: Mapping[str, float]
    seconds: float

    def is_bad(self) -> bool:
        """Whether a tensor held a non-finite entry. Waits for the device."""
        return bool((self.numbers[:, stats.NONFINITE] > 0).any())

    def rows(self, **constant: Any) -> Rows:
        """Columns of the layers table. Waits for the device, once.

        Args:
            constant: columns that are the same in every row (run, step).
        """
        slots = [(kind, keys[::-1] if kind == "grad" else keys) for kind, keys in self.slots]
        named = [(kind, key) for kind, keys in slots for key in keys]
        host = self.numbers.cpu().double().numpy().repeat([len(keys) for _, keys in slots], axis=0)
        divisor = np.array([self.scales.get(kind, 1.0) for kind, _ in named])
        columns = stats.columns(host[:, :-2], divisor)
        median, lost = host[:, -2], host[:, -1]
        # Not measured is null, which is not NaN: no entry at all, or a parameter's token axis.
        empty = columns["numel"] == 0
        tokenless = empty | (np.isnan(host[:, stats.FIRST]) & (host[:, stats.SS] >= 0))
        for name, values in columns.items():
            mask = tokenless if name == "first_share" else empty
            if values.dtype == np.float64:
                columns[name] = np.ma.masked_array(values, mask=mask)
        return {
            **{name: [value] * len(named) for name, value in constant.items()},
            "layer": [key.layer for _, key in named],
            "sublayer": [key.sublayer for _, key in named],
            "site": [key.name for _, key in named],
            "kind": [kind for kind, _ in named],
            **columns,
            "token_rms_median": np.ma.masked_array(median / divisor, mask=tokenless),
            "lost": np.ma.masked_array(lost.astype(np.int64), mask=lost < 0),
        }


def first_bad(rows: Rows) -> dict[str, Any] | None:
    """The first row, in the order of execution, that holds a non-finite entry."""
    bad = np.flatnonzero(rows["nonfinite"])
    if not len(bad):
        return None
    return {k: rows[k][bad[0]] for k in ("step", "layer", "sublayer", "site", "kind")}
