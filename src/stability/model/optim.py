"""The step of an optimizer, its learning rate, and what its update rule asked for.

The rules are those of `stability.parts.optimizers`. This is the arithmetic around them: moments,
eps and the update are in at least fp32 whatever the parameter's dtype (``train.state_dtype=fp32``),
and only the write-back rounds. There is no fp32 master copy: what the rounding drops is lost, as in
pure 16-bit training.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stability.config.knobs import Train
from stability.config.names import Key
from stability.parts.optimizers import UpdateRule, Weights
from stability.recording.stats import fp64_dtype


def is_narrow(p: Tensor) -> bool:
    """Whether a tensor is of a 16-bit format."""
    return p.dtype.itemsize < torch.float32.itemsize


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
    """One step of an update rule on parameters of any dtype.

    Args:
        weights: the trained parameters.
        rule: how they are updated.
        train: the ``train`` node of a config.

    Attributes:
        inner: torch's optimizers; the rule makes one or more.
    """

    def __init__(self, weights: Mapping[Key, nn.Parameter], rule: UpdateRule, train: Train) -> None:
        self.keys, self.params = list(weights), list[Tensor](weights.values())
        self.rule, self.train = rule, train
        self.lifted = train.state_dtype == "fp32" and any(map(is_narrow, self.params))
        # A lifted tensor is loaded from its rounded parameter before each step: it carries the
        # arithmetic, not a memory of what rounding dropped.
        self.lifted_params = (
            [p.detach().float() for p in self.params] if self.lifted else self.params
        )
        device = self.params[0].device.type
        fused = device in ("cpu", "cuda") and not any(map(is_narrow, self.lifted_params))
        named = dict(zip(weights, self.lifted_params, strict=True))
        self.inner = make_optimizers(rule, named, train, fused)

    @torch.no_grad()
    def gradients(self, loss_scale: Tensor) -> list[Tensor]:
        """Lift the gradients, divide out the loss scale, and return what the step will use."""
        grads = [_gradient(key, p) for key, p in zip(self.keys, self.params, strict=True)]
        if self.lifted:
            grads = [g.float() for g in grads]
            for lifted, g in zip(self.lifted_params, grads, strict=True):
                lifted.grad = g
        if not (loss_scale.is_cpu and loss_scale == 1):  # a GPU would have to be waited for
            torch._foreach_mul_(grads, loss_scale.reciprocal())
        return grads

    @torch.no_grad()
    def step(self, step: int, found_inf: Tensor) -> None:
        """Make the update of ``step`` from `gradients`, unless ``found_inf`` (on the device) is 1.

        The fused kernels read the flag themselves, so that the host need not wait; the others wait.
        """
        if self.lifted:
            torch._foreach_copy_(self.lifted_params, [p.detach() for p in self.params])
        for inner in self.inner:
            if inner.defaults.get("fused"):
                inner.found_inf = found_inf  # type: ignore[attr-defined]
            elif bool(found_inf):
                continue
            for group in inner.param_groups:
                group["lr"] = group["lr_factor"] * learning_rate(self.train, step)
            inner.step()
        if self.lifted:
            torch._foreach_copy_([p.detach() for p in self.params], self.lifted_params)

    @torch.no_grad()
    def asked(self, before: Sequence[Tensor], places: Sequence[int] | None = None) -> list[Tensor]:
        """What the rule asked for in the step just made, in fp64, before any rounding.

        Args:
            before: the parameters as the step found them.
            places: of the parameters that are asked about; all by default.
        """
        holders = {
            id(p): (inner, group)
            for inner in self.inner
            for group in inner.param_groups
            for p in group["params"]
        }
        found = []
        for place in range(len(before)) if places is None else places:
            lifted = self.lifted_params[place]
            found.append(self.rule.asked(*holders[id(lifted)], lifted, before[place].double()))
        return found

    def zero_grad(self) -> None:
        for p in (*self.params, *self.lifted_params):
            p.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"inner": [inner.state_dict() for inner in self.inner]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for inner, own in zip(self.inner, state["inner"], strict=True):
            inner.load_state_dict(own)


def make_optimizers(
    rule: UpdateRule, weights: Weights, train: Train, fused: bool
) -> list[torch.optim.Optimizer]:
    """The optimizers of a rule.

    Raises:
        ValueError: a weight is in none of them, or in two.
    """
    made = rule.make(weights, train, fused)
    held = Counter(id(p) for inner in made for g in inner.param_groups for p in g["params"])
    for key, p in weights.items():
        if held[id(p)] != 1:
            raise ValueError(f"{key} is in {held[id(p)]} parameter groups, not in one")
    for inner in made:
        for group in inner.param_groups:
            group.setdefault("lr_factor", 1.0)
    return made


def _gradient(key: Key, p: Tensor) -> Tensor:
    if p.grad is None:
        raise RuntimeError(f"no gradient reached {key}: it does not contribute to the loss")
    return p.grad


def total_norm(tensors: list[Tensor]) -> Tensor:
    """L2 norm of all tensors together, summed in fp64 (fp16 squares overflow at 256)."""
    dtype = fp64_dtype(tensors[0].device)
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors, 2, dtype=dtype)))
