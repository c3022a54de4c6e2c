"""How weights are initialised: one rule per class, free of torch, used by the model and the theory.

A rule gives the standard deviation of a weight matrix, never the draw: draws are standard normal
and depend on the seed and the weight's name alone (see `stability.model.gpt`). Biases start at 0,
norms at gamma = 1 and beta = 0, embeddings at ``init.embed_std`` whatever the rule.

To add one: a class here or in a module of your own, and a yaml in ``init/``.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

ROLES = {
    "q": "query projection",
    "k": "key projection",
    "v": "value projection",
    "attn_out": "attention's output projection, writes to the residual stream",
    "mlp_in": "MLP's first matrix",
    "mlp_gate": "MLP's gate, with model.activation=swiglu",
    "mlp_out": "MLP's second matrix, writes to the residual stream",
    "linear": "the matrix of a linear branch, writes to the residual stream",
    "head": "unembedding, where it is not tied to the embedding",
}
RESIDUAL_ROLES = ("attn_out", "mlp_out", "linear")
"""Roles of the matrices that write to the residual stream."""


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


class Init(ABC):
    """Base of every init."""

    @abstractmethod
    def std(self, w: Weight) -> float:
        """Standard deviation of the weight."""


class Normal(Init):
    """std = ``init.std`` for every matrix."""

    def __init__(self, std: float) -> None:
        if not std >= 0:
            raise ValueError("std must be >= 0")
        self.value = std

    def std(self, w: Weight) -> float:
        return self.value


class GPT2(Init):
    """std = 0.02, and 0.02 / sqrt(number of sublayers) for residual projections.

    Source: Radford et al. 2019, section 2.3: "N is the number of residual layers" = 2L.
    """

    def std(self, w: Weight) -> float:
        return 0.02 / math.sqrt(w.sublayers) if w.role in RESIDUAL_ROLES else 0.02


class Xavier(Init):
    """std = sqrt(2 / (fan_in + fan_out)). Source: Glorot and Bengio 2010."""

    def std(self, w: Weight) -> float:
        return math.sqrt(2 / (w.fan_in + w.fan_out))


class LeCun(Init):
    """std = 1 / sqrt(fan_in). Source: LeCun et al. 1998."""

    def std(self, w: Weight) -> float:
        return 1 / math.sqrt(w.fan_in)


class Kaiming(Init):
    """std = sqrt(2 / fan_in), made for ReLU. Source: arXiv:1502.01852."""

    def std(self, w: Weight) -> float:
        return math.sqrt(2 / w.fan_in)
