"""Norms: x_BTD -> x_BTD. They start as the identity scale: gamma = 1, beta = 0.

Every norm computes in at least fp32, whatever the stream's dtype, and returns the stream's dtype:
in fp16 the sum of squares of a row overflows at an rms of 256 / sqrt(d).

To add one: a class here or in a module of your own, and a yaml in ``norm_type/``. It is built as
``cls(width, bias, **rest)``. For the theory its class has an attribute ``kernel``, what it does to
a covariance; those of the norms below lie in `stability.theory.norm_kernels`, which is free of
torch.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stability.parts.published import Published


def at_least_fp32(x: Tensor) -> Tensor:
    """The tensor in at least fp32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def recomputing() -> bool:
    """Whether this forward pass is the second one that activation checkpointing makes."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class Affine(Published, nn.Module):
    """What all norms share: gamma_D and, with biases, beta_D.

    Args:
        width: features d.
        bias: whether there is a beta.
        eps: added to the variance or the mean square.
    """

    over: tuple[int, ...] = ()
    """Axes of x_BTD over which the norm takes its moment; empty for a norm that takes none."""
    centred = False
    """True: subtracts the mean, divides by the standard deviation. False: divides by the rms."""

    def __init__(self, width: int, bias: bool, eps: float) -> None:
        super().__init__()
        self.width, self.eps = width, eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def affine(self, xhat: Tensor) -> Tensor:
        """Gamma * xhat + beta, in xhat's dtype."""
        y = xhat * self.weight.to(xhat.dtype)
        return y if self.bias is None else y + self.bias.to(xhat.dtype)


class LayerNorm(Affine):
    """gamma (x - mean(x)) / sqrt(var(x) + eps) + beta over features."""

    source = "arXiv:1607.06450"
    reported = "recurrent nets: faster training than with BatchNorm or without a norm"

    over, centred = (-1,), True

    def forward(self, x_BTD: Tensor) -> Tensor:
        wide = at_least_fp32(x_BTD)
        beta = None if self.bias is None else self.bias.to(wide.dtype)
        gamma = self.weight.to(wide.dtype)
        return F.layer_norm(wide, (self.width,), gamma, beta, self.eps).to(x_BTD.dtype)


class RMSNorm(Affine):
    """gamma x / sqrt(mean(x^2) + eps) + beta over features.

    beta exists only with ``model.bias``; the paper has none.
    """

    source = "arXiv:1910.07467"
    reported = "results like LayerNorm's in 7% to 64% less time, over several models"

    over = (-1,)

    def forward(self, x_BTD: Tensor) -> Tensor:
        wide = at_least_fp32(x_BTD)
        mean_square_BT1 = wide.square().mean(-1, keepdim=True)
        return self.affine(wide * torch.rsqrt(mean_square_BT1 + self.eps)).to(x_BTD.dtype)


class BatchNorm(Affine):
    """gamma (x - mean) / sqrt(var + eps) + beta per feature, over batch and tokens in training.

    In training every token sees the mean of later ones, so a causal model is not causal in it. In
    evaluation it uses running statistics (momentum 0.1, unbiased variance, as in torch), which are
    kept in at least fp32. Padding tokens count like any other. Under accumulation the
    statistics are those of each part.
    """

    source = "arXiv:1502.03167"
    reported = "ImageNet: the accuracy of the net without it after 14 times fewer steps"
    combine = "not with padding or small batches; a causal model sees later tokens in training"

    over, centred = (0, 1), True
    momentum = 0.1

    def __init__(self, width: int, bias: bool, eps: float) -> None:
        super().__init__(width, bias, eps)
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    running_mean: Tensor
    running_var: Tensor

    def forward(self, x_BTD: Tensor) -> Tensor:
        wide = at_least_fp32(x_BTD)
        if self.training:
            var_D, mean_D = torch.var_mean(wide, dim=(0, 1), correction=0)
            if not recomputing():
                self._track(mean_D.detach(), var_D.detach(), wide.shape[0] * wide.shape[1])
        else:
            mean_D, var_D = self.running_mean, self.running_var
        xhat = (wide - mean_D) * torch.rsqrt(var_D + self.eps)
        return self.affine(xhat.to(wide.dtype)).to(x_BTD.dtype)

    @torch.no_grad()
    def _track(self, mean_D: Tensor, var_D: Tensor, n: int) -> None:
        unbiased_D = var_D * (n / max(n - 1, 1))
        self.running_mean.lerp_(mean_D.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(unbiased_D.to(self.running_var.dtype), self.momentum)
