"""What stands between the norm and the residual add: attention, MLP, linear; x_BTD -> branch_BTD.

Weights carry the names that the tables use (``q k v attn_out mlp_in mlp_gate mlp_out linear``),
each a matrix of its own. Nothing here is initialised: `stability.model.initialise` does that.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from stability import stats
from stability.norms import widen


class Site(nn.Module):
    """A place for a recorder to stand: returns the same values as a tensor of its own.

    The view gives the site a gradient of its own: what flows through this place and no other. An
    eager recorder hooks on to the module. Inside a compiled graph hooks do not fire, so there the
    site writes the statistics of what passes itself, see `watch`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.watching = False
        self.seen: Tensor | None = None
        self.leaf: Tensor | None = None

    def watch(self, entries: int, device: torch.device) -> None:
        """Prepare to be watched in a compiled graph, while ``watching`` is set.

        ``seen`` then gets the statistics of the activation in each forward pass and ``leaf.grad``
        adds up those of its gradient: the leaf takes part in nothing, its gradient is the message.
        """
        dtype = stats.wide_dtype(device)
        self.seen = torch.zeros(entries, dtype=dtype, device=device)
        self.leaf = torch.zeros(entries, dtype=dtype, device=device, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        if not self.watching or self.seen is None:
            return x.view_as(x)
        self.seen.copy_(torch.cat(stats.measure_tokens(x)))
        return _GradientToLeaf.apply(x, self.leaf)  # type: ignore[no-untyped-call]


class _GradientToLeaf(torch.autograd.Function):
    """The identity in x; statistics of x's gradient as the gradient of the leaf."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, leaf: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, torch.cat(stats.measure_tokens(grad))


QUERIES = 64
"""Scores are shown for at most this many evenly spaced query positions of each sequence."""


@lru_cache(maxsize=8)
def _shown_entries(time: int, causal: bool, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Query positions shown, which keys each may see, and the flat indices of those entries."""
    rows = torch.linspace(0, time - 1, min(time, QUERIES), dtype=torch.float64).round().long()
    seen = torch.arange(time) <= rows[:, None] if causal else torch.ones(len(rows), time).bool()
    return rows.to(device), seen.to(device), seen.flatten().nonzero()[:, 0].to(device)


class ScoresSite(nn.Module):
    """The site between (q, k) and the softmax. What it shows is computed only while observed.

    Fused attention never forms the scores, so `observe` forms them from q and k, in at least fp32,
    for `QUERIES` query positions. The choice does not depend on how a batch is split into parts.
    """

    names = ("scores", "attn_rows")

    def __init__(self, causal: bool, context: int) -> None:
        super().__init__()
        self.causal, self.context = causal, context
        self.watching = False
        self.seen: Tensor | None = None
        self.shown: tuple[Tensor, Tensor, Tensor] | None = None

    def watch(self, entries: int, device: torch.device) -> None:
        """As `Site.watch`: ``seen`` gets a row of statistics for each of `names`."""
        self.seen = torch.zeros(2, len(stats.FIELDS), dtype=stats.wide_dtype(device), device=device)
        self.shown = _shown_entries(self.context, self.causal, device)

    def forward(self, q_BHTK: Tensor, k_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        output = q_BHTK.view_as(q_BHTK), k_BHTK.view_as(k_BHTK)
        if self.watching and self.seen is not None and self.shown is not None:
            self.seen.copy_(torch.stack([stats.measure(t) for t in self._show(output, self.shown)]))
        return output

    def observe(self, output: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """``scores``: the unmasked logits q k / sqrt(K), flat; ``attn_rows``: each row's entropy.

        The entropy of row t is -sum_s a_ts ln a_ts in nats, between 0 and ln(t + 1).
        """
        q_BHTK = output[0]
        shown = _shown_entries(q_BHTK.shape[-2], self.causal, q_BHTK.device)
        return dict(zip(self.names, self._show(output, shown), strict=True))

    @torch.no_grad()
    def _show(
        self, output: tuple[Tensor, Tensor], shown: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        rows, seen, entries = shown
        q, k = (widen(t.detach()) for t in output)
        scores = q[..., rows, :] @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        log_a = torch.log_softmax(scores.masked_fill(~seen, -math.inf), dim=-1)
        a = log_a.exp()
        entropy = -(a * log_a.masked_fill(a == 0, 0)).sum(-1)
        return scores.flatten(-2)[..., entries].flatten(), entropy


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
    """softmax(q k^T / sqrt(K)) v, projected: multi-head self-attention. Source: arXiv:1706.03762.

    A fused kernel computes the softmax again on the way back, from scores and their logarithmic
    sum: where scores are huge its gradient is rounding error. The plain one keeps the softmax, in
    at least fp32, at the cost of T^2 numbers a head.

    Args:
        shape: the ``model`` node of a config.
    """

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__()
        width, bias = shape["width"], shape["bias"]
        self.heads, self.causal, self.dropout = shape["heads"], shape["causal"], shape["dropout"]
        self.rope = shape["position"] == "rope"
        self.plain = shape["attention"] == "plain"
        self.q = Linear(width, width, bias)
        self.k = Linear(width, width, bias)
        self.v = Linear(width, width, bias)
        self.scores = ScoresSite(self.causal, shape["context"])
        self.attn_out = Linear(width, width, bias)

    def _split(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x_BTD: Tensor) -> Tensor:
        q_BHTK, k_BHTK, v_BHTK = (self._split(f(x_BTD)) for f in (self.q, self.k, self.v))
        if self.rope:
            q_BHTK, k_BHTK = rotary(q_BHTK), rotary(k_BHTK)
        q_BHTK, k_BHTK = self.scores(q_BHTK, k_BHTK)
        p = self.dropout if self.training else 0.0
        with sdpa_kernel(SDPBackend.MATH) if self.plain else nullcontext():
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

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__()
        width, bias, activation = shape["width"], shape["bias"], shape["activation"]
        hidden = round(shape["mlp_ratio"] * width)
        self.dropout = shape["dropout"]
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

    def __init__(self, shape: Mapping[str, Any]) -> None:
        super().__init__()
        self.dropout = shape["dropout"]
        self.linear = Linear(shape["width"], shape["width"], shape["bias"])

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.dropout(self.linear(x_BTD), self.dropout, self.training)


BRANCHES: dict[str, type[nn.Module]] = {"attn": Attention, "mlp": MLP, "linear": LinearBranch}
"""The branch of each kind of sublayer, under the name that the tables use."""
