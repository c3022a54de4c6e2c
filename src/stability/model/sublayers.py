"""Branches between the norm and the residual add: attention, MLP, linear; x_BTD -> branch_BTD.

Weights carry the names that the tables use (``q k v attn_out mlp_in mlp_gate mlp_out linear``),
each a matrix of its own. Nothing here is initialised: `stability.model.gpt.initialise` does that.
"""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from stability.config.knobs import Model
from stability.parts.activations import Activation
from stability.parts.norms import at_least_fp32
from stability.recording.sites import ScoresSite


class Linear(nn.Linear):
    """A linear layer that leaves its weights to `stability.model.gpt.initialise`."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


def rotary(x_BHTK: Tensor) -> Tensor:
    """Rotary position embedding, base 10,000, halves paired. Source: arXiv:2104.09864."""
    time, width = x_BHTK.shape[-2:]
    wide = at_least_fp32(x_BHTK)
    rate = 10_000 ** (-torch.arange(0, width, 2, device=wide.device, dtype=wide.dtype) / width)
    angle_TK = torch.arange(time, device=wide.device, dtype=wide.dtype)[:, None] * rate
    cos, sin = angle_TK.cos(), angle_TK.sin()
    a, b = wide.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x_BHTK.dtype)


class Attention(nn.Module):
    """softmax(q k^T / sqrt(K)) v, projected: multi-head self-attention. Source: arXiv:1706.03762.

    A fused kernel recomputes the softmax in the backward pass from the scores and their
    log-sum-exp: for very large scores its gradient is dominated by rounding. ``attention=math``
    keeps the softmax, in at least fp32, at the cost of T^2 numbers a head.

    Args:
        shape: the ``model`` node of a config.
        activation: not used.
    """

    def __init__(self, shape: Model, activation: Activation) -> None:
        super().__init__()
        width, bias = shape.width, shape.bias
        self.heads, self.causal, self.dropout = shape.heads, shape.causal, shape.dropout
        self.rope = shape.position == "rope"
        self.math = shape.attention == "math"
        self.q = Linear(width, width, bias)
        self.k = Linear(width, width, bias)
        self.v = Linear(width, width, bias)
        self.scores = ScoresSite(self.causal, shape.context)
        self.attn_out = Linear(width, width, bias)

    def _split(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x_BTD: Tensor) -> Tensor:
        q_BHTK, k_BHTK, v_BHTK = (self._split(f(x_BTD)) for f in (self.q, self.k, self.v))
        if self.rope:
            q_BHTK, k_BHTK = rotary(q_BHTK), rotary(k_BHTK)
        q_BHTK, k_BHTK = self.scores(q_BHTK, k_BHTK)
        p = self.dropout if self.training else 0.0
        with sdpa_kernel(SDPBackend.MATH) if self.math else nullcontext():
            y_BHTK = F.scaled_dot_product_attention(
                q_BHTK, k_BHTK, v_BHTK, dropout_p=p, is_causal=self.causal
            )
        branch_BTD = self.attn_out(y_BHTK.transpose(1, 2).flatten(-2))
        return F.dropout(branch_BTD, self.dropout, self.training)


class MLP(nn.Module):
    """W2 phi(W1 x); with a gated activation W2 (phi(Wg x) * W1 x), of the same hidden width."""

    def __init__(self, shape: Model, activation: Activation) -> None:
        super().__init__()
        width, bias = shape.width, shape.bias
        hidden = round(shape.mlp_ratio * width)
        self.dropout = shape.dropout
        self.phi = activation
        self.mlp_in = Linear(width, hidden, bias)
        self.mlp_gate = Linear(width, hidden, bias) if activation.gated else None
        self.mlp_out = Linear(hidden, width, bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        hidden_BTF = self.mlp_in(x_BTD)
        if self.mlp_gate is None:
            hidden_BTF = self.phi(hidden_BTF)
        else:
            hidden_BTF = self.phi(self.mlp_gate(x_BTD)) * hidden_BTF
        return F.dropout(self.mlp_out(hidden_BTF), self.dropout, self.training)


class LinearBranch(nn.Module):
    """W x per token: the sublayer that derivations on paper assume."""

    def __init__(self, shape: Model, activation: Activation) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.linear = Linear(shape.width, shape.width, shape.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.dropout(self.linear(x_BTD), self.dropout, self.training)


BRANCHES: dict[str, Callable[[Model, Activation], nn.Module]] = {
    "attn": Attention,
    "mlp": MLP,
    "linear": LinearBranch,
}
"""The branch of each kind of sublayer, under the name that the tables use."""
