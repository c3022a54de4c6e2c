"""Probes: what needs passes of its own. One file each, found by looking; rows of table ``probes``.

Asked for by name with ``record.probes=[...]`` and taken on recorded steps, before the step's own
pass, with the weights after ``step`` updates. They look at a copy of the model (`_look`), so that
the training is bitwise the same with them and without. The copy computes in at least fp32 whatever
the run's dtype: a probe tells of the function that the run's (rounded) weights define, not of what
rounding adds on the way, which the recorder sees. Dropout is off; BatchNorm uses the statistics of
the batch, as in training (`lesion` alone validates, with running statistics).

Cost of one recorded step at depth 96, width 64, 8 x 64 tokens, on one CPU core: `jacobian` 20 s,
`lesion` 7 s, `norm_jacobian` and `output_change` 1.4 s, each of the others below 1 s. At depth 12:
3 s for `jacobian`, 1 s for all others together.

====================  ==========================  ==================================================
probe                 layer, sublayer             item: value
====================  ==========================  ==================================================
``jacobian``          each sublayer               ``sublayer``: spectral norm of d x_post / d x_pre
                                                  ``branch``: of what flows through the branch
                                                  alone: J_f J_N in Pre-LN, J_N J_f in Post-LN
                      (block l, ``block``)        ``tail``: of d x_L / d x_l, x_l entering block l;
                                                  at most 9 evenly spaced blocks
``norm_jacobian``     each sublayer; (depth,      ``error``: largest |closed form - autograd|, fp64
                      ``head``) the final norm    ``spectral``, ``inverse_sigma``: of J and 1/sigma,
                                                  mean over tokens; gamma 1, beta 0. A second norm
                                                  has ``out.error`` and so on
``norm_sigma``        as ``norm_jacobian``        ``norm``, ``norm.out``: mean over tokens of
                                                  1/sigma
``token_mean``        as ``norm_jacobian``        ``norm``, ``norm.out``: mean over tokens of
                                                  |mean| / std of the norm's input
``norm_bytes``        as ``norm_jacobian``        ``norm``, ``norm.out``: bytes a token that its
                                                  operations read and write, there and back
``outer_product``     each sublayer; (depth,      weight name (``q``, ``mlp_in``, ...): relative
                      ``head``) where untied      Frobenius error of sum_t delta_t x_t^T
``linear_gain``       as ``outer_product``        weight name: rms(output) / rms(input)
``token_cosine``      (-1, ``embed``) for x_0,    ``act``, ``grad``: mean cosine between different
                      each sublayer's x_post      tokens of a sequence, of x and of its gradient
``token_grad``        as ``token_cosine``         position (``0``, ``1``, ...; at most 64): mean
                                                  square of the gradient at this position
                      each sublayer               ``q.first``, ``q.quarter``, ``q.rest`` and so on
                                                  for each weight: norm of the part of its
                                                  gradient from position 0, from the rest of the
                                                  first quarter, from all later positions
``output_change``     (depth, ``head``)           ``change``: |F(W) - F(W + noise)|^2
``model_update``      (depth, ``head``)           ``change``: |F(theta_i) - F(theta_0)|
``lesion``            (block l, ``block``)        ``rise``: loss without the block less the intact
                      (depth, ``head``)           ``intact``: the intact loss, nats per token
====================  ==========================  ==================================================

F is what the head reads: x_L, after the final norm where there is one. The share of weight updates
lost to rounding is no probe: it is ``lost / numel`` of the rows of kind ``update`` in ``layers``.
"""

import pkgutil
from importlib import import_module
from typing import Any

from torch import Tensor

from stability.model.build import Built
from stability.training.probes._look import Look, Row


class Prober:
    """Takes the probes that a run asks for.

    Args:
        built: what the config builds.
        run: hash, for the table.
    """

    def __init__(self, built: Built, run: str) -> None:
        self.run = run
        names = [m.name for m in pkgutil.iter_modules(__path__)]
        asked = built.config.record.probes
        self.probes = {n: import_module(f"{__name__}.{n}") for n in names if n in asked}
        self.look = Look(built)

    def take(self, step: int, x_BT: Tensor, y_BT: Tensor) -> dict[str, list[Any]]:
        """Columns of the probes table for one step, given its batch."""
        self.look.turn_to(x_BT, y_BT)
        found: list[tuple[str, Row]] = []
        for name, probe in self.probes.items():
            self.look.refresh()
            found += [(name, row) for row in probe.rows(self.look)]
        self.look.forget()
        return {
            "run": [self.run] * len(found),
            "step": [step] * len(found),
            "probe": [name for name, _ in found],
            "layer": [row[0] for _, row in found],
            "sublayer": [row[1] for _, row in found],
            "item": [row[2] for _, row in found],
            "value": [row[3] for _, row in found],
        }
