"""Update rules: how an update is made of gradients, and what it asks for before any rounding.

The arithmetic around a rule (fp32 moments for 16-bit parameters, learning rate schedule, skipped
steps) is that of `stability.model.optim`.

To add one: a class here or in a module of your own, and a yaml in ``optimizer/`` with its label,
its order in legends and ``build: {_target_: ...}``. It is built as ``cls(**rest)``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stability.config.instantiate import RefusedArgument
from stability.config.knobs import Train
from stability.config.names import Key
from stability.parts.published import Published

Weights = Mapping[Key, Tensor]
"""Every trained parameter under its place and the name that the tables use."""

Group = dict[str, Any]
"""A parameter group of torch. ``lr_factor``, 1 where it is not given, multiplies the schedule."""


class UpdateRule(Published, ABC):
    """Base of every update rule."""

    def weight_decay(self, train: Train) -> float:
        """The ``weight_decay`` that torch's optimizer is given for matrices and embeddings."""
        return train.weight_decay

    def groups(self, weights: Weights, train: Train) -> list[Group]:
        """Parameter groups: matrices and embeddings decay, biases and norms do not."""
        matrices = [p for p in weights.values() if p.ndim >= 2]
        vectors = [p for p in weights.values() if p.ndim < 2]
        groups: list[Group] = [
            {"params": matrices, "weight_decay": self.weight_decay(train)},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return [g for g in groups if g["params"]]

    @abstractmethod
    def make(self, weights: Weights, train: Train, fused: bool) -> list[torch.optim.Optimizer]:
        """The optimizers of torch that do it, each weight in one of them.

        Args:
            weights: what they update: the parameters, or their fp32 copies.
            train: the ``train`` node of a config.
            fused: whether torch's fused kernels may be asked for.
        """

    @abstractmethod
    def asked(self, inner: torch.optim.Optimizer, group: Group, w: Tensor, old: Tensor) -> Tensor:
        """What the rule asked for in the step just made, in fp64, before any rounding.

        Args:
            inner: the optimizer that holds w.
            group: its group that holds w.
            w: the weight after the step, with the gradient that the step used.
            old: the weight before the step, in fp64.
        """


class SGD(UpdateRule):
    """-lr (g + decay w): gradient descent without momentum."""

    source = "Robbins and Monro 1951"

    def make(self, weights: Weights, train: Train, fused: bool) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.groups(weights, train), lr=train.lr, fused=fused)]

    def asked(self, inner: torch.optim.Optimizer, group: Group, w: Tensor, old: Tensor) -> Tensor:
        assert w.grad is not None
        return -float(group["lr"]) * (w.grad.double() + group["weight_decay"] * old)


class Adam(UpdateRule):
    """-lr m^ / (sqrt(v^) + eps); weight decay is part of the gradient.

    m^ and v^ are the bias-corrected moments after the step.

    Args:
        betas: decay rates of the two moments.
        eps: added to the root of the second.

    Raises:
        RefusedArgument: a decay rate does not lie in [0, 1), or eps is negative.
    """

    source = "arXiv:1412.6980"
    reported = "MNIST, IMDB, CIFAR-10: loss falls as fast as with other adaptive methods or faster"
    combine = "train.weight_decay=0: its decay is scaled like a gradient, see adamw"
    rule: type[torch.optim.Adam] = torch.optim.Adam

    def __init__(self, betas: list[float], eps: float) -> None:
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise RefusedArgument(f"betas must be two numbers in [0, 1), not {betas}")
        if not eps >= 0:
            raise RefusedArgument(f"eps must be >= 0, not {eps}")
        self.betas, self.eps = (betas[0], betas[1]), eps

    def make(self, weights: Weights, train: Train, fused: bool) -> list[torch.optim.Optimizer]:
        groups = self.groups(weights, train)
        return [self.rule(groups, lr=train.lr, betas=self.betas, eps=self.eps, fused=fused)]

    def asked(self, inner: torch.optim.Optimizer, group: Group, w: Tensor, old: Tensor) -> Tensor:
        return -float(group["lr"]) * self.direction(inner.state[w])

    def direction(self, state: Mapping[str, Tensor]) -> Tensor:
        """m^ / (sqrt(v^) + eps) of a parameter's state, in fp64."""
        count = state["step"].double()
        m = state["exp_avg"].double() / (1 - self.betas[0] ** count)
        v = state["exp_avg_sq"].double() / (1 - self.betas[1] ** count)
        return m / (v.sqrt() + self.eps)


class AdamW(Adam):
    """-lr (m^ / (sqrt(v^) + eps) + decay w).

    Args:
        betas: decay rates of the two moments.
        eps: added to the root of the second.
        independent_weight_decay: decay by weight_decay * lr(t)/lr instead of weight_decay * lr(t).
    """

    source = "arXiv:1711.05101"
    reported = "CIFAR-10 and ImageNet32x32: test error 15% lower, relatively, than Adam with L2"
    rule = torch.optim.AdamW

    def __init__(self, betas: list[float], eps: float, independent_weight_decay: bool) -> None:
        super().__init__(betas, eps)
        self.independent = independent_weight_decay

    def weight_decay(self, train: Train) -> float:
        if not self.independent:
            return train.weight_decay
        return train.weight_decay / train.lr if train.lr else 0.0

    def asked(self, inner: torch.optim.Optimizer, group: Group, w: Tensor, old: Tensor) -> Tensor:
        decay = group["weight_decay"] * old
        return -float(group["lr"]) * (self.direction(inner.state[w]) + decay)
