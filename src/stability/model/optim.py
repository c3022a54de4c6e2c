"""Parameter groups, optimizer, schedule, and what the update rule asked for.

The rules are torch's own. What is ours is the arithmetic around them: moments, eps and the update
are in at least fp32 whatever the parameter's dtype (``train.state_dtype=fp32``), and only the
write-back rounds. There is no fp32 master copy: what the rounding drops is lost, as an honest
16-bit run loses it.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stability.config.knobs import Train

LOW = (torch.float16, torch.bfloat16)


def learning_rate(train: Train, step: int) -> float:
    """Learning rate of the update that step makes.

    Warm-up: lr (t + 1) / warmup_steps for t < warmup_steps. Then constant, or with
    p = (t - warmup) / (steps - warmup): linear lr (1 - p), cosine lr (1 + cos(pi p)) / 2.
    """
    lr, warmup = float(train.lr), train.warmup_steps
    if step < warmup:
        return lr * (step + 1) / warmup
    p = (step - warmup) / max(train.steps - warmup, 1)
    if train.schedule == "linear":
        return lr * (1 - p)
    if train.schedule == "cosine":
        return lr * 0.5 * (1 + math.cos(math.pi * p))
    return lr


class Optimizer:
    """One step of AdamW, Adam or SGD on parameters of any dtype.

    Args:
        params: the trained parameters.
        train: the ``train`` node of a config.
    """

    def __init__(self, params: Sequence[nn.Parameter], train: Train) -> None:
        self.params: list[Tensor] = list(params)
        self.train = train
        self.lifted = train.state_dtype == "fp32" and any(p.dtype in LOW for p in self.params)
        # A lifted tensor is loaded from its rounded parameter before each step: it carries the
        # arithmetic, not a memory of what rounding dropped.
        self.lifted_params = [p.detach().float() for p in params] if self.lifted else self.params
        device = self.params[0].device.type
        self.fused = device in ("cpu", "cuda") and not any(
            p.dtype in LOW for p in self.lifted_params
        )
        self.inner = self._rule()

    def _rule(self) -> torch.optim.Optimizer:
        train = self.train
        decay = train.weight_decay
        if train.independent_weight_decay:
            decay = decay / train.lr if train.lr else 0.0
        matrices = [p for p in self.lifted_params if p.ndim >= 2]
        vectors = [p for p in self.lifted_params if p.ndim < 2]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        groups = [g for g in groups if g["params"]]
        if train.optimizer == "sgd":
            return torch.optim.SGD(groups, lr=train.lr, fused=self.fused)
        rule = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[train.optimizer]
        betas = (train.betas[0], train.betas[1])
        return rule(groups, lr=train.lr, betas=betas, eps=train.eps, fused=self.fused)

    @torch.no_grad()
    def gradients(self, loss_scale: Tensor) -> list[Tensor]:
        """Lift the gradients, divide out the loss scale, and return what the step will use."""
        grads = [_gradient(p) for p in self.params]
        if self.lifted:
            grads = [g.float() for g in grads]
            for lifted, g in zip(self.lifted_params, grads, strict=True):
                lifted.grad = g
        torch._foreach_mul_(grads, loss_scale.reciprocal())
        return grads

    @torch.no_grad()
    def step(self, step: int, found_inf: Tensor) -> None:
        """Make the update of ``step`` from `gradients`, unless ``found_inf`` (on the device) is 1.

        The fused kernels read the flag themselves, so that the host need not wait; the others wait.
        """
        if self.fused:
            self.inner.found_inf = found_inf  # type: ignore[attr-defined]
            self.inner.grad_scale = torch.ones_like(found_inf)  # type: ignore[attr-defined]
        elif bool(found_inf):
            return
        for group in self.inner.param_groups:
            group["lr"] = learning_rate(self.train, step)
        if self.lifted:
            torch._foreach_copy_(self.lifted_params, [p.detach() for p in self.params])
        self.inner.step()
        if self.lifted:
            torch._foreach_copy_([p.detach() for p in self.params], self.lifted_params)

    @torch.no_grad()
    def asked(self, before: Sequence[Tensor]) -> list[Tensor]:
        """What the rule asked for in the step just made, in fp64, before any rounding.

        AdamW: -lr (m^ / (sqrt(v^) + eps) + decay w), with m^, v^ the bias-corrected moments after
        the step and w the parameter before it. Adam has no decay term here (it is in m), SGD is
        -lr (g + decay w).
        """
        groups = {id(p): g for g in self.inner.param_groups for p in g["params"]}
        return [
            self._asked(lifted, old.double(), groups[id(lifted)])
            for lifted, old in zip(self.lifted_params, before, strict=True)
        ]

    def _asked(self, lifted: Tensor, old: Tensor, group: dict[str, Any]) -> Tensor:
        lr, decay = group["lr"], group["weight_decay"]
        if self.train.optimizer == "sgd":
            return -lr * (_gradient(lifted).double() + decay * old)
        state = self.inner.state[lifted]
        beta1, beta2 = group["betas"]
        count = state["step"].double()
        m = state["exp_avg"].double() / (1 - beta1**count)
        v = state["exp_avg_sq"].double() / (1 - beta2**count)
        decayed = decay * old if self.train.optimizer == "adamw" else 0.0
        return -lr * (m / (v.sqrt() + group["eps"]) + decayed)

    def zero_grad(self) -> None:
        for p in (*self.params, *self.lifted_params):
            p.grad = None

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


def _gradient(p: Tensor) -> Tensor:
    if p.grad is None:
        raise RuntimeError(
            "no gradient reached a parameter: part of the network took no part in the loss"
        )
    return p.grad


def total_norm(tensors: list[Tensor]) -> Tensor:
    """L2 norm of all tensors together, summed in fp64 (fp16 squares overflow at 256)."""
    dtype = torch.float32 if tensors[0].device.type == "mps" else torch.float64
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors, 2, dtype=dtype)))
