"""Probes: what needs passes of its own. Each is one file here; rows of the table ``probes``.

They are asked for with ``record.probes=[NAME, ...]`` and taken on recorded steps, before the step's
own pass, with the weights after ``step`` updates. A probe gets a copy of the model (`_context`), so
that the training is bitwise the same with probes and without. The copy computes in at least fp32
whatever the run's dtype: a probe measures the function that the run's (rounded) weights define, not
what rounding adds on the way, which the recorder sees. Dropout is off; BatchNorm uses the
statistics of the batch, as in training (`lesion` alone validates, with running statistics).

A probe's module has ``rows(context)``, which yields (layer, sublayer, item, value), and ``ITEMS``,
which says what they are; `make docs` writes the table in docs/data.md from it. F in there is what
the head reads: x_L, after the final norm where there is one. The share of weight updates lost to
rounding is no probe: it is ``lost / numel`` of the rows of kind ``update`` in ``layers``.

Cost of one recorded step at depth 96, width 64, 8 x 64 tokens, on one CPU core: `jacobian` 20 s,
`lesion` 7 s, `norm_jacobian` and `output_change` 1.4 s, each of the others below 1 s. At depth 12:
3 s for `jacobian`, 1 s for all others together.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

from stability.config.knobs import PROBES
from stability.model.build import Built
from stability.training.passes import Batch
from stability.training.probes._context import ProbeContext, Row


def load(name: str) -> ModuleType:
    """The module of a probe."""
    return import_module(f"{__name__}.{name}")


class Prober:
    """Takes the probes that a run asks for.

    Args:
        built: what the config builds.
        run: hash, for the table.
    """

    def __init__(self, built: Built, run: str) -> None:
        self.run = run
        asked = built.config.record.probes
        self.probes = {name: load(name) for name in PROBES if name in asked}
        self.context = ProbeContext(built)

    def take(self, batch: Batch) -> dict[str, list[Any]]:
        """Columns of the probes table for one step, given its batch."""
        self.context.set_batch(batch)
        found: list[tuple[str, Row]] = []
        for name, probe in self.probes.items():
            self.context.load_weights()
            found += [(name, row) for row in probe.rows(self.context)]
        self.context.free_pass()
        return {
            "run": [self.run] * len(found),
            "step": [batch.step] * len(found),
            "probe": [name for name, _ in found],
            "layer": [row[0] for _, row in found],
            "sublayer": [row[1] for _, row in found],
            "item": [row[2] for _, row in found],
            "value": [row[3] for _, row in found],
        }
