"""The GPT written out in plain operations: the slow twin of `stability.model.gpt`, sites and all.

It reads the weights of a model by the names that the tables use and knows nothing else of it. Each
site becomes a tensor of its own, so that `torch.autograd.grad` can be asked for its gradient.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from stability.config.names import Key

EPS = 1e-5


class At(NamedTuple):
    """What an equation may depend on."""

    depth: int
    layer: int
    a: Tensor | None
    """The trained factor, where there is one."""


EQUATIONS: dict[str, Callable] = {  # from the papers: x, sublayer, norm, second norm, place
    "pre": lambda x, f, n, out, at: x + f(n(x)),
    "post": lambda x, f, n, out, at: n(x + f(x)),
    "none": lambda x, f, n, out, at: x + f(x),
    "plain": lambda x, f, n, out, at: f(x),
    "peri": lambda x, f, n, out, at: x + out(f(n(x))),
    "deepnorm": lambda x, f, n, out, at: n((2 * at.depth) ** 0.25 * x + f(x)),
    "sandwich": lambda x, f, n, out, at: x + out(f(n(x))),
    "output_norm": lambda x, f, n, out, at: x + out(f(x)),
    "dssn": lambda x, f, n, out, at: x + out(f(n(x))),
    "trinity": lambda x, f, n, out, at: x + out(f(n(x))),
    "lns": lambda x, f, n, out, at: x + f(n(x) / math.sqrt(at.layer + 1)),
    "mix": lambda x, f, n, out, at: (
        n(x + f(x)) if at.layer < math.floor(at.depth / 4) else x + f(n(x))
    ),
    "keel": lambda x, f, n, out, at: out(2 * at.depth * x + f(n(x))),
    "depth_mup": lambda x, f, n, out, at: x + f(n(x)) / at.depth,
    "rezero": lambda x, f, n, out, at: x + at.a * f(x),
    "skipinit": lambda x, f, n, out, at: x + at.a * f(x),
    "layerscale": lambda x, f, n, out, at: x + at.a * f(n(x)),
}
ENDS_IN_A_NORM = ("pre", "peri", "sandwich", "output_norm", "dssn", "trinity", "lns", "mix")
ENDS_IN_A_NORM += ("depth_mup", "layerscale")
STREAM_EQUATIONS: dict[str, tuple[Callable, Callable]] = {
    # from the papers: (both streams, sublayer, norms by name, layer from 0), (both streams, norms)
    "residual": (
        lambda x, r, f, n, layer: (n("")(x + f(x)), r + f(x)),
        lambda x, r, n: x + n("")(r),
    ),
    "siamese": (
        lambda x, y, f, n, layer: (
            n("")(x) + f(n("inner")(n("")(x) + n("y")(y))) / math.sqrt(2 * (layer + 1)),
            y + f(n("inner")(n("")(x) + n("y")(y))),
        ),
        lambda x, y, n: n("")(n("x")(x) + n("y")(y)),
    ),
}
STREAMS = {"residual": ("x", "r"), "siamese": ("x", "y")}

STREAM_EQUATIONS: dict[str, tuple[Callable, Callable]] = {
    # from the papers: (both streams, sublayer, norms by name, layer from 0), (both streams, norms)
    "residual": (
        lambda x, r, f, n, layer: (n("")(x + f(x)), r + f(x)),
        lambda x, r, n: x + n("")(r),
    ),
    "siamese": (
        lambda x, y, f, n, layer: (
            n("")(x) + f(n("inner")(n("")(x) + n("y")(y))) / math.sqrt(2 * (layer + 1)),
            y + f(n("inner")(n("")(x) + n("y")(y))),
        ),
        lambda x, y, n: n("")(n("x")(x) + n("y")(y)),
    ),
}
STREAMS = {"residual": ("x", "r"), "siamese": ("x", "y")}

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "relu": lambda x: x.clamp(min=0),
    "tanh": lambda x: (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "identity": lambda x: x,
    "swiglu": lambda x: x / (1 + torch.exp(-x)),  # of the gate
}
GATED = ("swiglu",)


def layernorm(x: Tensor, gamma: Tensor, beta: Tensor | float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return gamma * centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt() + beta


def rmsnorm(x: Tensor, gamma: Tensor, beta: Tensor | float) -> Tensor:
    return gamma * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() + beta


def rope(x_BHTK: Tensor) -> Tensor:
    """Features i and i + K/2 are a complex number, turned by t * 10000^(-2i/K)."""
    K, T = x_BHTK.shape[-1], x_BHTK.shape[-2]
    turned = torch.view_as_complex(torch.stack(x_BHTK.chunk(2, dim=-1), dim=-1).contiguous())
    rate = 10_000 ** (-2 * torch.arange(K // 2, dtype=torch.float64) / K)
    angle = torch.arange(T)[:, None] * rate
    turned = turned * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1)


class ByHand:
    """A forward pass; afterwards ``seen`` holds each site's tensor under its key."""

    def __init__(self, config: dict, weights: dict[Key, Tensor]) -> None:
        self.config, self.shape, self.weights = config, config.model, weights
        self.norm = {"layernorm": layernorm, "rmsnorm": rmsnorm}[config.choices["norm_type"]]
        self.seen: dict[Key, Tensor] = {}

    def __call__(self, tokens_BT: Tensor) -> Tensor:
        depth, placement = self.config.depth, self.config.choices["norm"]
        x = self.weights[Key(-1, "embed", "wte")][tokens_BT]
        if self.shape.position == "learned":
            x = x + self.weights[Key(-1, "embed", "wpe")][: tokens_BT.shape[1]]
        x = self._site(-1, "embed", "resid_post", x)
        names = {"attn_mlp": ("attn", "mlp"), "mlp": ("mlp",), "linear": ("linear",)}
        if placement in STREAM_EQUATIONS:
            return self._unembed(self._streams(x, names[self.shape.sublayers]))
        for layer in range(depth):
            for sublayer in names[self.shape.sublayers]:
                self.seen[Key(layer, sublayer, "resid_pre")] = x
                x = EQUATIONS[placement](
                    x,
                    lambda z, at=(layer, sublayer): self._branch(*at, z),
                    lambda z, at=(layer, sublayer): self._norm(*at, "norm", z),
                    lambda z, at=(layer, sublayer): self._norm(*at, "norm.out", z),
                    At(depth, layer, self.weights.get(Key(layer, sublayer, "a"))),
                )
                x = self._site(layer, sublayer, "resid_post", x)
        self.seen[Key(depth, "head", "resid_pre")] = x
        if placement in ENDS_IN_A_NORM:
            x = self._norm(depth, "head", "norm", x)
        return self._unembed(x)

    def _unembed(self, x: Tensor) -> Tensor:
        depth = self.config.depth
        x = self._site(depth, "head", "branch_in", x)
        tied = self.shape.tie_embeddings
        unembed = Key(-1, "embed", "wte") if tied else Key(depth, "head", "head")
        return self._site(depth, "head", "branch_out", x @ self.weights[unembed].T)

    def _streams(self, x: Tensor, names: tuple[str, ...]) -> Tensor:
        depth, placement = self.config.depth, self.config.choices["norm"]
        (step, end), state, entering = STREAM_EQUATIONS[placement], (x, x), x

        def norms(layer: int, sublayer: str) -> Callable:
            return lambda name: lambda z: self._norm(layer, sublayer, f"norm.{name}".strip("."), z)

        for layer in range(depth):
            for at in ((layer, sublayer) for sublayer in names):
                self.seen[Key(*at, "resid_pre")] = entering
                state = step(*state, lambda z, at=at: self._branch(*at, z), norms(*at), layer)
                for name, z in zip(STREAMS[placement], state, strict=True):
                    self.seen[Key(*at, f"resid_post.{name}")] = z
                self.seen[Key(*at, "resid_post")] = entering = torch.cat(state, dim=-1)
        self.seen[Key(depth, "head", "resid_pre")] = entering
        return end(*state, norms(depth, "head"))

    def _site(self, layer: int, sublayer: str, name: str, x: Tensor) -> Tensor:
        self.seen[Key(layer, sublayer, name)] = x = x.clone()
        return x

    def _norm(self, layer: int, sublayer: str, name: str, x: Tensor) -> Tensor:
        beta = self.weights.get(Key(layer, sublayer, f"{name}.bias"), 0.0)
        return self.norm(x, self.weights[Key(layer, sublayer, f"{name}.weight")], beta)

    def _linear(self, layer: int, sublayer: str, name: str, x: Tensor) -> Tensor:
        bias = self.weights.get(Key(layer, sublayer, f"{name}.bias"), 0.0)
        return x @ self.weights[Key(layer, sublayer, name)].T + bias

    def _branch(self, layer: int, sublayer: str, x: Tensor) -> Tensor:
        x = self._site(layer, sublayer, "branch_in", x)
        if sublayer == "linear":
            y = self._linear(layer, sublayer, "linear", x)
        elif sublayer == "mlp":
            y = self._mlp(layer, x)
        else:
            y = self._attention(layer, x)
        return self._site(layer, sublayer, "branch_out", y)

    def _mlp(self, layer: int, x: Tensor) -> Tensor:
        hidden = self._linear(layer, "mlp", "mlp_in", x)
        name = self.config.choices["activation"]
        if name in GATED:
            hidden = ACTIVATIONS[name](self._linear(layer, "mlp", "mlp_gate", x)) * hidden
        else:
            hidden = ACTIVATIONS[name](hidden)
        return self._linear(layer, "mlp", "mlp_out", hidden)

    def _attention(self, layer: int, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        H = self.shape.heads
        q, k, v = (
            self._linear(layer, "attn", name, x_BTD).view(B, T, H, D // H).transpose(1, 2)
            for name in ("q", "k", "v")
        )
        if self.shape.position == "rope":
            q, k = rope(q), rope(k)
        scores = torch.einsum("bhtk,bhsk->bhts", q, k) / math.sqrt(D // H)
        allowed = torch.ones(T, T).tril().bool() if self.shape.causal else torch.ones(T, T) > 0
        self.seen[Key(layer, "attn", "scores")] = scores[:, :, allowed]
        a = torch.softmax(scores.masked_fill(~allowed, -math.inf), dim=-1)
        self.seen[Key(layer, "attn", "attn_rows")] = torch.special.entr(a).sum(-1)
        y = torch.einsum("bhts,bhsk->bthk", a, v).reshape(B, T, D)
        return self._linear(layer, "attn", "attn_out", y)
