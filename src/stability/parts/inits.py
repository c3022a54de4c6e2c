"""How weights are initialised: one rule per class, free of torch, used by the model and the theory.

A rule gives the standard deviation of a weight matrix, never the draw: draws are standard normal
and depend on the seed and the weight's name alone (see `stability.model.gpt`). Biases start at 0,
norms at gamma = 1 and beta = 0, embeddings at ``init.embed_std`` whatever the rule.

To add one: a class here or in a module of your own, and a yaml in ``init/``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from stability.config.instantiate import RefusedArgument
from stability.config.names import RESIDUAL_ROLES, SUBLAYER_KINDS
from stability.parts.placements import Placement
from stability.parts.published import Published

ROLES = {name: doc for kind in SUBLAYER_KINDS.values() for name, doc in kind.roles.items()}
ROLES["head"] = "unembedding, where it is not tied to the embedding"


@dataclass(frozen=True)
class Weight:
    """What a rule may know of a weight matrix."""

    role: str
    """One of `ROLES`."""
    fan_in: int
    fan_out: int
    """Columns and rows of the matrix itself: Q, K and V are matrices of their own."""
    layer: int
    """0-based block; the depth for the head."""
    depth: int
    """Number L of blocks."""
    sublayers: int
    """Branches that write to the residual stream: 2L for attention and MLP, L with one a block."""

    @property
    def width(self) -> int:
        """Features d of the stream that it reads, or that it writes to."""
        return self.fan_out if self.role in RESIDUAL_ROLES else self.fan_in

    @classmethod
    def of(cls, role: str, fans: tuple[int, int], layer: int, depth: int, per_block: int) -> Self:
        """The weight of a net of ``depth`` blocks of ``per_block`` sublayers each.

        Args:
            role: one of `ROLES`.
            fans: fan_in and fan_out.
            layer: 0-based block; the depth for the head.
            depth: number L of blocks.
            per_block: sublayers of a block.
        """
        return cls(role, *fans, layer, depth, depth * per_block)


class Init(Published, ABC):
    """Base of every init."""

    scales_with_depth = False
    """Whether residual projections start smaller in a deeper net."""

    @abstractmethod
    def std(self, w: Weight) -> float:
        """Standard deviation of the weight."""


def start_std(init: Init, w: Weight, placement: Placement | None) -> float:
    """The std with which a weight starts: the init's, times the factor of its placement.

    The head lies in no sublayer, and so in no placement.
    """
    return init.std(w) * (1.0 if placement is None else placement.init_gain(w.role))


class Normal(Init):
    """std = ``init.std`` for every matrix."""

    source = "GPT (Radford et al. 2018), with 0.02"
    combine = "the gain of a branch is about width^2 std^4: 0.02 is small at small widths"

    def __init__(self, std: float) -> None:
        if not std >= 0:
            raise RefusedArgument("std must be >= 0")
        self.value = std

    def std(self, w: Weight) -> float:
        return self.value


class GPT2(Init):
    """std = 0.02, and 0.02 / sqrt(number of sublayers) for residual projections.

    Its source calls the number N, "the number of residual layers"; it is 2L.
    """

    source = "Radford et al. 2019, section 2.3"
    combine = "not with a placement that divides by the depth itself"
    scales_with_depth = True

    def std(self, w: Weight) -> float:
        return 0.02 / math.sqrt(w.sublayers) if w.role in RESIDUAL_ROLES else 0.02


class Measured(Init):
    """The stds of an external model: role -> one for each layer, or one for all."""

    def __init__(self, stds: Mapping[str, Sequence[float]]) -> None:
        self.stds = stds

    def std(self, w: Weight) -> float:
        layers = self.stds.get(w.role, (0.0,))
        return layers[min(w.layer, len(layers) - 1)]


class Xavier(Init):
    """std = sqrt(2 / (fan_in + fan_out))."""

    source = "Glorot and Bengio 2010"
    reported = "tanh nets of 5 hidden layers: lower error than with the usual uniform init"

    def std(self, w: Weight) -> float:
        return math.sqrt(2 / (w.fan_in + w.fan_out))


class LeCun(Init):
    """std = 1 / sqrt(fan_in)."""

    source = "LeCun et al. 1998"

    def std(self, w: Weight) -> float:
        return 1 / math.sqrt(w.fan_in)


class Kaiming(Init):
    """std = sqrt(2 / fan_in), made for ReLU."""

    source = "arXiv:1502.01852"
    reported = "ImageNet: a ReLU net of 30 layers learns, and does not learn with Xavier"
    combine = "activation=relu"

    def std(self, w: Weight) -> float:
        return math.sqrt(2 / w.fan_in)


class Small(Init):
    """std = sqrt(2 / (5 d)), d the width of the stream."""

    source = "arXiv:1910.05895"
    reported = "translation of low-resource pairs: Pre-LN trains at larger learning rates"

    def std(self, w: Weight) -> float:
        return math.sqrt(2 / (5 * w.width))


class Wang(Small):
    """std = sqrt(2 / (5 d)), and 2 / (L sqrt(d)) for residual projections."""

    source = "GPT-J and GPT-NeoX-20B (arXiv:2204.06745)"
    combine = "not with a placement that divides by the depth itself"
    scales_with_depth = True

    def std(self, w: Weight) -> float:
        return 2 / (w.depth * math.sqrt(w.width)) if w.role in RESIDUAL_ROLES else super().std(w)


class Tiny(Init):
    """std = sqrt(1 / (2 d L)) for every matrix."""

    source = "arXiv:2504.07866 (Pangu Ultra)"
    reported = "135B parameters and 94 layers, with norm=dssn: no spike in 13.2T tokens"
    combine = "init.embed_std=0.5, in its source; norm=dssn"
    scales_with_depth = True

    def std(self, w: Weight) -> float:
        return math.sqrt(1 / (2 * w.width * w.depth))


class DepthInit(Init):
    """std = 0.02; 0.02 / sqrt(2 l) for W_O, W_1 and W_2 of block l = 1 .. L; the head 1 / sqrt(d).

    A port's choice for Llama 3, whose authors do not state theirs. The port truncates the draws and
    leaves the gate of a gated MLP at 0.02.
    """

    source = "torchtitan, its Llama 3"
    combine = "init.embed_std=1; not with a placement that divides by the depth itself"
    scales_with_depth = True
    roles = ("attn_out", "mlp_in", "mlp_out", "linear")

    def std(self, w: Weight) -> float:
        if w.role == "head":
            return 1 / math.sqrt(w.width)
        return 0.02 / math.sqrt(2 * (w.layer + 1)) if w.role in self.roles else 0.02
