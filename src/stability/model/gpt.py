"""The GPT: embedding, blocks of sublayers in a placement, head. It names its sites and weights.

The model knows nothing of recording. It hands out two maps, `GPT.sites` and `GPT.weights`, whose
keys (layer, sublayer, name) are those of the tables; `initialise` draws every weight from a
generator of its own, so that the same weight starts from the same draw whatever the depth,
placement or dtype.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from stability.config.knobs import Model
from stability.config.names import BLOCK_SUBLAYERS, EMBED_LAYER, Key
from stability.model.sublayers import BRANCHES, Attention, Linear
from stability.parts.activations import Activation
from stability.parts.batches import IGNORED
from stability.parts.inits import Init, Weight, start_std
from stability.parts.norms import at_least_fp32
from stability.parts.placements import Fn, Operand, Placement, ending, norms_used
from stability.recording.sites import Site


class Parts(NamedTuple):
    """What a config builds for the model, as functions of the place."""

    placement: Callable[[int, str], Placement]
    norm: Callable[[], nn.Module]
    activation: Activation
    width: int


def owned_norms(names: list[str], make: Callable[[], nn.Module]) -> nn.Module | None:
    """The norms that an equation calls: ``norm``, and ``norm.out`` and so on as its children."""
    if not names:
        return None
    norm = make() if "" in names else nn.Module()
    for name in names:
        if name:
            norm.add_module(name, make())
    return norm


def packed(state: Operand) -> Tensor:
    """The streams of a state side by side: one tensor x_BTS."""
    return torch.cat(state, dim=-1) if isinstance(state, tuple) else state


def unpacked(x_BTS: Tensor, placement: Placement) -> Operand:
    """The state that `packed` made one tensor of."""
    count = len(placement.streams)
    return x_BTS if count == 1 else x_BTS.chunk(count, dim=-1)


class Sublayer(nn.Module):
    """One update of the residual stream: a branch f in its placement, with its sites.

    ``resid_pre`` is the ``resid_post`` of what comes before: the same tensor, the same gradient.
    Several streams pass between sublayers side by side, as x_BTS with S = streams * D.
    """

    def __init__(self, branch: nn.Module, placement: Placement, parts: Parts) -> None:
        super().__init__()
        self.placement = placement
        self.starts = {name: float(getattr(placement, name)) for name in placement.trained}
        """Where each trained factor of the placement starts."""
        self.norm = owned_norms(norms_used(placement), parts.norm)
        self.branch_in = Site()
        self.f = branch
        self.branch_out = Site()
        names = placement.streams
        self.streams = nn.ModuleDict({name: Site() for name in names[len(names) == 1 :]})
        self.resid_post = Site()
        for name, per_feature in placement.trained.items():
            factor = nn.Parameter(torch.empty(parts.width if per_feature else 1))
            self.register_parameter(name, factor)
            setattr(placement, name, factor)  # the equation multiplies by it

    def branch(self, x_BTD: Tensor) -> Tensor:
        return self.branch_out(self.f(self.branch_in(x_BTD)))

    def update(self, x_BTS: Tensor, f: Fn) -> Tensor:
        """The placement's equation with f in the place of the branch."""
        state = self.placement(unpacked(x_BTS, self.placement), f, self.norm)
        if self.streams:
            pairs = zip(self.streams.values(), state, strict=True)
            state = tuple(site(x_BTD) for site, x_BTD in pairs)
        return packed(state)

    def forward(self, x_BTS: Tensor) -> Tensor:
        return self.resid_post(self.update(x_BTS, self.branch))


class Block(nn.Module):
    """The sublayers of one layer, in order: the unit of `torch.compile`."""

    def __init__(self, sublayers: Mapping[str, Sublayer]) -> None:
        super().__init__()
        for name, sublayer in sublayers.items():
            self.add_module(name, sublayer)

    def forward(self, x_BTD: Tensor) -> Tensor:
        for sublayer in self.children():
            x_BTD = sublayer(x_BTD)
        return x_BTD

    def sublayers(self) -> dict[str, Sublayer]:
        return dict(self.named_children())  # type: ignore[arg-type]


class Embedding(nn.Module):
    """Token embedding plus, with learned positions, position embedding; then streams begin."""

    def __init__(
        self,
        vocab: int,
        width: int,
        context: int,
        learned: bool,
        dropout: float,
        placement: Placement,
    ) -> None:
        super().__init__()
        self.placement = placement
        self.dropout = dropout
        self.wte = nn.Parameter(torch.empty(vocab, width))
        self.wpe = nn.Parameter(torch.empty(context, width)) if learned else None
        self.resid_post = Site()

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = F.embedding(tokens_BT, self.wte)
        if self.wpe is not None:
            x_BTD = x_BTD + self.wpe[: tokens_BT.shape[1]]
        x_BTD = self.resid_post(F.dropout(x_BTD, self.dropout, self.training))
        return packed(self.placement.begin(x_BTD))


class Head(nn.Module):
    """The end of the placement's streams, and the unembedding: x_BTS -> logits_BTV."""

    def __init__(self, placement: Placement, parts: Parts, unembed: nn.Module | None) -> None:
        super().__init__()
        self.placement = placement
        self.norm = owned_norms(ending(placement)[1], parts.norm)
        self.branch_in = Site()
        self.head = unembed
        self.branch_out = Site()

    def forward(self, x_BTS: Tensor, wte_VD: Tensor) -> Tensor:
        x_BTD = self.branch_in(self.placement.end(unpacked(x_BTS, self.placement), self.norm))
        logits_BTV = F.linear(x_BTD, wte_VD) if self.head is None else self.head(x_BTD)
        return self.branch_out(logits_BTV)


KEPT = 10
"""About how many times its input a block keeps for the backward pass."""


def segment(depth: int) -> int:
    """Blocks that checkpointing recomputes together.

    The input of each of L / s segments is kept, and all that one segment of s blocks keeps:
    L / s + 10 s tensors of the stream's size. s = sqrt(L / 10) makes that least. It grows as
    sqrt(L). Source: arXiv:1604.06174.
    """
    return max(1, round(math.sqrt(depth / KEPT)))


def _pass(x_BTD: Tensor, blocks: Iterable[Block]) -> Tensor:
    for block in blocks:
        x_BTD = block(x_BTD)
    return x_BTD


class GPT(nn.Module):
    """A decoder-only Transformer of ``depth`` blocks.

    Args:
        shape: the ``model`` node of a config.
        depth: blocks L.
        vocab: rows of the embedding.
        parts: makes placements and norms.
        checkpointing: recompute activations in the backward pass, a `segment` of blocks at a time.
    """

    def __init__(
        self,
        shape: Model,
        depth: int,
        vocab: int,
        parts: Parts,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        width, context, dropout = shape.width, shape.context, shape.dropout
        names = BLOCK_SUBLAYERS[shape.sublayers]
        self.depth, self.checkpointing = depth, checkpointing
        first, last = parts.placement(0, names[0]), parts.placement(depth - 1, names[-1])
        self.embed = Embedding(vocab, width, context, shape.position == "learned", dropout, first)

        def block(layer: int) -> Block:
            return Block(
                {
                    n: Sublayer(
                        BRANCHES[n](shape, parts.activation), parts.placement(layer, n), parts
                    )
                    for n in names
                }
            )

        self.blocks: list[Block] = nn.ModuleList(map(block, range(depth)))  # type: ignore[assignment]
        unembed = None if shape.tie_embeddings else Linear(width, vocab, bias=False)
        self.head = Head(last, parts, unembed)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Token ids -> logits_BTV in the stream's dtype."""
        x_BTD = self.embed(tokens_BT)
        if self.checkpointing and torch.is_grad_enabled():
            blocks, step = list(self.blocks), segment(self.depth)
            for start in range(0, self.depth, step):
                part = blocks[start : start + step]
                x_BTD = checkpoint(_pass, x_BTD, part, use_reentrant=False)
        else:
            x_BTD = _pass(x_BTD, self.blocks)
        return self.head(x_BTD, self.embed.wte)

    def sites(self) -> dict[Key, nn.Module]:
        """Every site in the order of execution; a module may have two keys.

        The resid_post of a sublayer is the resid_pre of the next. With several streams it holds
        all of them, and each has a site ``resid_post.NAME`` of its own.
        """
        found: dict[Key, nn.Module] = {}
        stream: nn.Module = self.embed.resid_post
        found[Key(EMBED_LAYER, "embed", "resid_post")] = stream
        for layer, block in enumerate(self.blocks):
            for name, sub in block.sublayers().items():
                found[Key(layer, name, "resid_pre")] = stream
                found[Key(layer, name, "branch_in")] = sub.branch_in
                if isinstance(sub.f, Attention):
                    found[Key(layer, name, "scores")] = sub.f.scores
                    found[Key(layer, name, "attn_rows")] = sub.f.scores
                found[Key(layer, name, "branch_out")] = sub.branch_out
                for each, site in sub.streams.items():
                    found[Key(layer, name, f"resid_post.{each}")] = site
                found[Key(layer, name, "resid_post")] = stream = sub.resid_post
        found[Key(self.depth, "head", "resid_pre")] = stream
        found[Key(self.depth, "head", "branch_in")] = self.head.branch_in
        found[Key(self.depth, "head", "branch_out")] = self.head.branch_out
        return found

    def sublayer(self, layer: int, name: str) -> Sublayer | None:
        """The sublayer of this place; None for the embedding and the head."""
        if not 0 <= layer < self.depth:
            return None
        return self.blocks[layer].sublayers()[name]

    def weights(self) -> dict[Key, nn.Parameter]:
        """Every parameter under the name the tables use: ``q``, ``q.bias``, ``norm.out.weight``."""
        found = {Key(EMBED_LAYER, "embed", n): p for n, p in self.embed.named_parameters()}
        for layer, block in enumerate(self.blocks):
            for name, sub in block.sublayers().items():
                for path, p in sub.named_parameters():
                    found[Key(layer, name, _short(path))] = p
        for path, p in self.head.named_parameters():
            found[Key(self.depth, "head", _short(path))] = p
        return found


def _short(path: str) -> str:
    path = path.removeprefix("f.")
    return path if path.startswith("norm.") else path.removesuffix(".weight")


def draw(seed: int, name: str, shape: torch.Size) -> Tensor:
    """Standard normal draws in fp64 that depend on seed, name and shape alone."""
    key = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key, "big") >> 1)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@torch.no_grad()
def initialise(model: GPT, init: Init, seed: int, embed_std: float) -> None:
    """Give every weight its start: matrices std * draw, biases 0; norms keep gamma = 1, beta = 0.

    std is the init's for the matrix, times the factor that the placement asks for its role. A
    placement may ask for another gamma, and says where its trained factors start.
    """
    per_block = len(model.blocks[0].sublayers())
    for (layer, sublayer, name), p in model.weights().items():
        owner = model.sublayer(layer, sublayer)
        if name.startswith("norm."):
            if owner is not None and name.endswith(".weight"):
                p.mul_(owner.placement.norm_gain(name[len("norm.") : -len("weight")].rstrip(".")))
            continue
        if owner is not None and name in owner.starts:
            p.fill_(owner.starts[name])
            continue
        if name.endswith(".bias"):
            p.zero_()
            continue
        if sublayer == "embed":
            std = embed_std
        else:
            fan_out, fan_in = p.shape
            weight = Weight.of(name, (fan_in, fan_out), layer, model.depth, per_block)
            std = start_std(init, weight, owner.placement if owner is not None else None)
        place = sublayer if sublayer in ("embed", "head") else f"{layer}.{sublayer}"
        p.copy_(draw(seed, f"{place}.{name}", p.shape) * std)


def loss_sum(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Sum over counted tokens of the cross-entropy in nats, of logits in at least fp32."""
    return F.cross_entropy(
        at_least_fp32(logits_BTV).flatten(0, 1),
        targets_BT.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )
