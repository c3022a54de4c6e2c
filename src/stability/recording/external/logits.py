"""Attention logits: from queries and keys, from what a softmax reads, from torch's own module.

They are what the built-in GPT records under the same names (`recording.sites.ScoresSite`), with
what a model adds to them, such as T5's relative positions.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stability.config.token_positions import positions
from stability.parts.norms import at_least_fp32
from stability.recording import stats
from stability.recording.sites import QUERIES, ScoresSite, row_entropy

NAMES = ScoresSite.names
"""Sites of an attention module, beside what it reads and returns."""


class Logits(NamedTuple):
    """Attention logits of some queries, (..., queries, keys)."""

    scores: Tensor
    seen: Tensor
    """Whether the query sees the key; of a shape that expands to that of the scores."""

    def vectors(self, heads: bool = False) -> dict[str, Tensor]:
        """Statistics for each of `NAMES`.

        They are of the logits of keys that are seen, and of the entropy of each query that sees
        a key.

        Args:
            heads: whether each head has statistics of its own as well, ``scores.h0`` and so on.
        """
        seen = self.seen.expand(self.scores.shape)
        entropy = row_entropy(self.scores, seen)
        found = _statistics(self.scores, seen, entropy)
        if heads and seen.ndim > 3:
            each = self.scores.unbind(-3), seen.unbind(-3), entropy.unbind(-2)
            for h, tensors in enumerate(zip(*each, strict=True)):
                of_head = _statistics(*tensors)
                found |= {f"{name}.h{h}": vector for name, vector in of_head.items()}
        return found


def _statistics(scores: Tensor, seen: Tensor, entropy: Tensor) -> dict[str, Tensor]:
    shown = scores[seen], entropy[seen.any(-1)]
    return {name: stats.measure(x) for name, x in zip(NAMES, shown, strict=True)}


def of_queries_and_keys(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Logits:
    """Logits of torch's ``scaled_dot_product_attention``, for `QUERIES` queries of each sequence.

    Args:
        q: (..., heads, queries, head width).
        k: (..., heads, keys, head width); may have fewer heads, each for several of q.
        mask: truth values: whether a query sees a key; or numbers to add, with the lowest ones of
            their format, or -inf, where it does not.
        is_causal: whether query t sees keys 0 to t only.
        scale: of q k; 1/sqrt(head width) by default.
    """
    rows = torch.tensor(positions(q.shape[-2], QUERIES), device=q.device)
    if q.ndim > 3 and 1 < k.shape[-3] < q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    seen = torch.ones(len(rows), k.shape[-2], dtype=torch.bool, device=q.device)
    if is_causal:
        seen = torch.arange(k.shape[-2], device=q.device) <= rows[:, None]
    with torch.autocast(q.device.type, enabled=False):
        q, k = at_least_fp32(q.detach()), at_least_fp32(k.detach())
        scores = q[..., rows, :] @ k.transpose(-1, -2).to(q.dtype)
        scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        whole = torch.broadcast_shapes(mask.shape, (q.shape[-2], k.shape[-2]))
        mask = mask.detach().expand(whole)[..., rows, :]
        seen = seen & (mask if mask.dtype == torch.bool else _is_seen(mask))
        scores = scores if mask.dtype == torch.bool else scores + mask
    return Logits(scores, seen)


def of_softmax(x: Tensor) -> Logits:
    """Logits that a softmax over keys reads, for `QUERIES` queries of each sequence."""
    rows = torch.tensor(positions(x.shape[-2], QUERIES), device=x.device)
    scores = at_least_fp32(x.detach()[..., rows, :])
    return Logits(scores, _is_seen(x.detach()[..., rows, :]))


def _is_seen(x: Tensor) -> Tensor:
    """False where a mask has put the lowest number of a format, or -inf."""
    return ~(x <= torch.finfo(x.dtype).min / 2)


def of_multihead(module: nn.MultiheadAttention, args: Any, kwargs: Any) -> Logits | None:
    """Logits of torch's module, computed from what it read; None where it adds keys of its own."""
    names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key = given["query"], given["key"]
    if module.bias_k is not None or module.add_zero_attn or query.is_nested or query.ndim != 3:
        return None
    if not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    weights: tuple[Any, ...] = (module.q_proj_weight, module.k_proj_weight)
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    bias = module.in_proj_bias
    biases = (None, None) if bias is None else bias.chunk(3)
    q, k = (
        F.linear(x, w, b).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        for x, w, b in zip((query, key), weights, biases, strict=False)
    )
    return of_queries_and_keys(q, k, _as_added(given, module.num_heads, q.dtype))


def _as_added(given: dict[str, Any], heads: int, dtype: torch.dtype) -> Tensor | None:
    """The masks of torch's module as numbers to add to logits (batch, heads, queries, keys)."""
    mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
    if mask is not None and mask.ndim == 3:
        mask = mask.unflatten(0, (-1, heads))
    if padding is not None:
        padding = padding[:, None, None, :]
    parts = [_numbers(m, dtype) for m in (mask, padding) if m is not None]
    return sum(parts[1:], parts[0]) if parts else None


def _numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
