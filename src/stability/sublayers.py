"""What stands between the norm and the residual add: attention, MLP, linear; x_BTD -> branch_BTD.

Weights carry the names that the tables use (``q k v attn_out mlp_in mlp_gate mlp_out linear``), each a
matrix of its own. Nothing here is initialised: `stability.model.initialise` draws every weight.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stability.norms import widen


class Site(nn.Module):
    """A place for a recorder to stand: returns the same values as a tensor of its own.

    The view gives the site a gradient of its own: what flows through this place and no other.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.view_as(x)


class ScoresSite(nn.Module):
    """The site between (q, k) and the softmax. What it shows is computed only while observed.

    Scores are never formed by fused attention, so `observe` forms them from q and k, in at least
    fp32, for the first ``sequences`` sequences of the batch and all heads.
    """

    sequences = 4

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q_BHTK: Tensor, k_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        return q_BHTK.view_as(q_BHTK), k_BHTK.view_as(k_BHTK)

    @torch.no_grad()
    def observe(self, output: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """``scores``: the unmasked logits q k / sqrt(K), flat; ``attn_rows``: each row's entropy.

        The entropy of row t is -sum_s a_ts ln a_ts in nats, between 0 and ln(t + 1).
        """
        q, k = (widen(t[: self.sequences].detach()) for t in output)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if not self.causal:
            shown = scores.flatten()
        else:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
            shown = scores[..., allowed].flatten()
            scores = scores.masked_fill(~allowed, -math.inf)
        log_a = torch.log_softmax(scores, dim=-1)
        a = log_a.exp()
        return {"scores": shown, "attn_rows": -(a * log_a.masked_fill(a == 0, 0)).sum(-1)}


class Linear(nn.Linear):
    """A linear layer that leaves its weights to `stability.model.initialise`."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


def rotary(x_BHTK: Tensor) -> Tensor:
    """Rotary position embedding, base 10,000, halves paired. Source: arXiv:2104.09864."""
    time, width = x_BHTK.shape[-2:]
    wide = widen(x_BHTK)
    rate = 10_000 ** (-torch.arange(0, width, 2, device=wide.device, dtype=wide.dtype) / width)
    angle_TK = torch.arange(time, device=wide.device, dtype=wide.dtype)[:, None] * rate
    cos, sin = angle_TK.cos(), angle_TK.sin()
    a, b = wide.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x_BHTK.dtype)


class Attention(nn.Module):
    """softmax(q k^T / sqrt(K)) v, projected: multi-head self-attention. Source: arXiv:1706.03762."""

    def __init__(
        self, width: int, heads: int, causal: bool, rope: bool, bias: bool, dropout: float
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.rope, self.dropout = heads, causal, rope, dropout
        self.q = Linear(width, width, bias)
        self.k = Linear(width, width, bias)
        self.v = Linear(width, width, bias)
        self.scores = ScoresSite(causal)
        self.attn_out = Linear(width, width, bias)

    def _split(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x_BTD: Tensor) -> Tensor:
        q_BHTK, k_BHTK, v_BHTK = (self._split(f(x_BTD)) for f in (self.q, self.k, self.v))
        if self.rope:
            q_BHTK, k_BHTK = rotary(q_BHTK), rotary(k_BHTK)
        q_BHTK, k_BHTK = self.scores(q_BHTK, k_BHTK)
        p = self.dropout if self.training else 0.0
        y_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BHTK, v_BHTK, dropout_p=p, is_causal=self.causal
        )
        branch_BTD = self.attn_out(y_BHTK.transpose(1, 2).flatten(-2))
        return F.dropout(branch_BTD, self.dropout, self.training)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
    "swiglu": F.silu,
}


class MLP(nn.Module):
    """W2 phi(W1 x); with swiglu W2 (silu(Wg x) * W1 x), arXiv:2002.05202, same hidden width."""

    def __init__(
        self, width: int, hidden: int, activation: str, bias: bool, dropout: float
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.phi = ACTIVATIONS[activation]
        self.mlp_in = Linear(width, hidden, bias)
        self.mlp_gate = Linear(width, hidden, bias) if activation == "swiglu" else None
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

    def __init__(self, width: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.linear = Linear(width, width, bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.dropout(self.linear(x_BTD), self.dropout, self.training)
