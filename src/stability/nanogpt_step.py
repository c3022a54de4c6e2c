"""A training step of nanoGPT's kind, for `stability.bench` to compare the GPT's own step with.

The same network as the default config's, written the usual way: one matrix for q, k and v, no
sites, torch's own modules, fused AdamW, gradients clipped to a norm of 1. It shares nothing with
`stability.model`, so that it is slow or fast by itself.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stability.config.knobs import Config
from stability.training.passes import Batch

CLIP = 1.0
"""Largest norm of the gradients, nanoGPT's own default."""


class _Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, hidden: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, bias=bias) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias)
        self.attn_out = nn.Linear(width, width, bias)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden, bias), nn.GELU(), nn.Linear(hidden, width, bias)
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        batch, time, width = x_BTD.shape
        qkv = self.qkv(self.norm_1(x_BTD)).split(width, dim=2)
        q, k, v = (t.view(batch, time, self.heads, -1).transpose(1, 2) for t in qkv)
        y_BHTK = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y_BTD = y_BHTK.transpose(1, 2).contiguous().view(batch, time, width)
        x_BTD = x_BTD + self.attn_out(y_BTD)
        return x_BTD + self.mlp(self.norm_2(x_BTD))


class NanoGPT(nn.Module):
    """A pre-norm decoder with learned positions, and embeddings tied as the config says.

    Args:
        config: its depth and the shape of its model.
        vocab: rows of the embedding.
    """

    def __init__(self, config: Config, vocab: int) -> None:
        super().__init__()
        shape = config.model
        hidden = round(shape.mlp_ratio * shape.width)
        self.wte = nn.Embedding(vocab, shape.width)
        self.wpe = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(
            *(_Block(shape.width, shape.heads, hidden, shape.bias) for _ in range(config.depth))
        )
        self.norm = nn.LayerNorm(shape.width, bias=shape.bias)
        self.head = nn.Linear(shape.width, vocab, bias=False)
        nn.init.normal_(self.wte.weight, std=0.02)
        if shape.tie_embeddings:
            self.head.weight = self.wte.weight

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """The mean cross-entropy in nats per token."""
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.blocks(self.wte(tokens_BT) + self.wpe(positions_T))
        logits_BTV = self.head(self.norm(x_BTD))
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def nanogpt_step(config: Config, vocab: int, batch: Batch) -> Callable[[], Tensor]:
    """One whole training step, which returns its loss."""
    train, model = config.train, NanoGPT(config, vocab).to(batch.x_BT.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=train.lr, weight_decay=train.weight_decay, fused=True
    )

    def run() -> Tensor:
        loss: Tensor = model(batch.x_BT, batch.y_BT)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return run
