"""The GPT of this package that a recorded model equals at init, for the theory of its variance.

Everything is read off the modules: stds from the weights, the norm's kind from its class, the
activation from its values. A model that differs in any part has no such GPT.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stability.config.knobs import Config
from stability.config.names import BLOCK
from stability.parts import activations
from stability.recording import stats
from stability.recording.external.sites import Sites

SAME = 0.05
"""Relative difference up to which two stds are one, beside three standard errors."""

ACTIVATIONS = ("GELU", "GELUTanh", "ReLU", "Tanh", "Sigmoid", "Identity", "SwiGLU")


class Differs(Exception):
    """The model equals no GPT of this package; the reason in words."""


class Family(NamedTuple):
    """Where the weights of a family lie."""

    matrices: Mapping[str, str]
    """Role -> dotted name in a block; several roles of one name share it, in this order."""
    tokens: str
    """Name of the table of tokens, beside the list of blocks."""
    positions: str | None
    """Name of the table of positions there; None with rotary positions."""


FAMILIES = {
    "gpt2": Family(
        {
            **dict.fromkeys(("q", "k", "v"), "attn.c_attn"),
            "attn_out": "attn.c_proj",
            "mlp_in": "mlp.c_fc",
            "mlp_out": "mlp.c_proj",
        },
        "wte",
        "wpe",
    ),
    "llama": Family(
        {
            "q": "self_attn.q_proj",
            "k": "self_attn.k_proj",
            "v": "self_attn.v_proj",
            "attn_out": "self_attn.o_proj",
            "mlp_gate": "mlp.gate_proj",
            "mlp_in": "mlp.up_proj",
            "mlp_out": "mlp.down_proj",
        },
        "embed_tokens",
        None,
    ),
}
"""Families whose blocks are those of the built-in GPT with norms before the sublayers."""


@torch.no_grad()
def equal_gpt(model: nn.Module, sites: Sites) -> Config:
    """The config of the GPT with the residual stream of this model.

    Raises:
        Differs: there is none.
    """
    if sites.family not in FAMILIES:
        raise Differs(f"{sites.family or 'a pattern'} is not covered")
    if any(isinstance(p, DTensor) for p in model.parameters()):
        raise Differs("processes share its weights")
    family = FAMILIES[sites.family]
    _require_no_dropout(model)
    blocks, around = _blocks(model, sites)
    tokens, positions = _tables(around, family)
    norms = [model.get_submodule(n) for n, (_, s) in sites.places.items() if "norm" in s]
    if len(norms) != 2 * len(blocks) + 1:
        raise Differs("it does not end in a norm")
    _require_plain(blocks, family, norms)
    first: Any = blocks[0]
    vocab, width = tokens.shape
    hidden = first.get_submodule(family.matrices["mlp_out"]).weight.numel() // width
    heads = _heads(first, width)
    if family.positions is None:
        _require_rotary(around, width // heads)
    shape = {
        "depth": len(blocks),
        "model.width": width,
        "model.heads": heads,
        "model.mlp_ratio": hidden / width,
        "model.vocab": vocab,
        "model.position": "learned" if family.positions else "rope",
    }
    builds = {
        "norm.build": {"_target_": "stability.parts.placements.Pre"},
        "norm_type.build": _norm(norms),
        "activation.build": {"_target_": _activation(first.mlp, "mlp_gate" in family.matrices)},
        "init.build": _init(blocks, family),
    }
    return Config().changed({**shape, **builds, "init.embed_std": _embed_std(tokens, positions)})


@torch.no_grad()
def embedded(model: nn.Module, sites: Sites, tokens_BT: Tensor) -> Tensor:
    """The embedding x_0 of that GPT."""
    tokens, positions = _tables(_blocks(model, sites)[1], FAMILIES[sites.family])
    x_BTD = tokens[tokens_BT]
    return x_BTD if positions is None else x_BTD + positions[: tokens_BT.shape[1]]


def _blocks(model: nn.Module, sites: Sites) -> tuple[list[nn.Module], nn.Module]:
    """The blocks, and the module beside whose list of blocks the tables lie."""
    names = sorted((layer, n) for n, (layer, s) in sites.places.items() if s == BLOCK)
    around = names[0][1].rpartition(".")[0].rpartition(".")[0]
    return [model.get_submodule(name) for _, name in names], model.get_submodule(around)


def _tables(around: nn.Module, family: Family) -> tuple[Tensor, Tensor | None]:
    """The embeddings of tokens and of positions."""
    tables: list[Any] = [getattr(around, name or "", None) for name in family[1:]]
    if not isinstance(tables[0], nn.Embedding):
        raise Differs(f"it has no {family.tokens}")
    if family.positions and not isinstance(tables[1], nn.Embedding):
        raise Differs(f"it has no {family.positions}")
    return tables[0].weight, tables[1].weight if family.positions else None


def _require_no_dropout(model: nn.Module) -> None:
    for module in model.modules():
        share = (
            module.p if isinstance(module, nn.Dropout) else getattr(module, "attention_dropout", 0)
        )
        if module.training and isinstance(share, float) and share > 0:
            raise Differs("it has dropout")


def _require_plain(blocks: list[Any], family: Family, norms: list[nn.Module]) -> None:
    """Blocks have these matrices, biases of 0 and norms as they begin, and nothing else."""
    of_norms = {p for norm in norms for p in norm.parameters()}
    for norm in norms:
        for name, p in norm.named_parameters():
            if not bool((p == (0 if name == "bias" else 1)).all()):
                raise Differs("its norms are not those of an init")
    for block in blocks:
        inside = dict(block.named_modules())
        for role, name in family.matrices.items():
            if not isinstance(getattr(inside.get(name), "weight", None), Tensor):
                raise Differs(f"its blocks have no {role}")
        known = {block.get_submodule(name).weight for name in family.matrices.values()} | of_norms
        for name, p in block.named_parameters():
            if p not in known and not (name.endswith("bias") and bool((p == 0).all())):
                raise Differs(f"its blocks have {name}")


def _stds(block: nn.Module, family: Family) -> dict[str, float]:
    """Role -> root mean square of the weights."""
    found = {}
    for role, name in family.matrices.items():
        weight: Any = block.get_submodule(name).weight
        sharing = [r for r, other in family.matrices.items() if other == name]
        axis = 0 if weight.shape[0] > weight.shape[1] else 1
        if len(sharing) > 1 and weight.shape[axis] != len(sharing) * weight.shape[1 - axis]:
            raise Differs(f"its {name} is not {', '.join(sharing)}")
        part = weight.chunk(len(sharing), axis)[sharing.index(role)]
        found[role] = _rms(part)
    return found


def _init(blocks: list[nn.Module], family: Family) -> dict[str, Any]:
    """The init with the stds of these blocks."""
    stds = [_stds(block, family) for block in blocks]
    of_roles = {role: [found[role] for found in stds] for role in family.matrices}
    return {"_target_": "stability.parts.inits.Measured", "stds": of_roles}


def _rms(weight: Tensor) -> float:
    return math.sqrt(float(stats.square_of(stats.measure(weight)[None])) / weight.numel())


def _heads(block: nn.Module, width: int) -> int:
    for attention in block.modules():
        if isinstance(size := getattr(attention, "head_dim", None), int) and width % size == 0:
            scale = getattr(attention, "scaling", size**-0.5)
            if abs(scale * size**0.5 - 1) > 1e-6:
                raise Differs("its attention has a scale of its own")
            return width // size
        if isinstance(heads := getattr(attention, "n_head", None), int):
            return heads
    raise Differs("its number of heads is not known")


def _embed_std(tokens: Tensor, positions: Tensor | None) -> float:
    std = _rms(tokens)
    if positions is not None:
        error = math.sqrt(1 / (2 * tokens.numel()) + 1 / (2 * positions.numel()))
        if abs(_rms(positions) / std - 1) > SAME + 3 * error:
            raise Differs("its tables of tokens and positions differ in size")
    return std


def _norm(norms: list[nn.Module]) -> dict[str, Any]:
    layernorm = isinstance(norms[0], nn.LayerNorm)
    if not layernorm and "rmsnorm" not in type(norms[0]).__name__.lower():
        raise Differs(f"its norm is {type(norms[0]).__name__}")
    eps = getattr(norms[0], "variance_epsilon", None) or getattr(norms[0], "eps", None)
    name = "LayerNorm" if layernorm else "RMSNorm"
    return {"_target_": f"stability.parts.norms.{name}", "eps": float(eps or 0.0)}


def _activation(mlp: Any, gated: bool) -> str:
    """The activation with the values of the module that has no parameters."""
    x = torch.linspace(-4, 4, 101)
    for module in mlp.children():
        if isinstance(module, nn.Dropout) or any(True for _ in module.parameters()):
            continue
        y = type(module).forward(module, x)
        for name in ACTIVATIONS:
            known = getattr(activations, name)()
            if known.gated == gated and torch.allclose(known(x), y, atol=1e-6):
                return f"{activations.__name__}.{name}"
    raise Differs("its activation is not known")


def _require_rotary(around: nn.Module, head: int) -> None:
    rotary: Any = getattr(around, "rotary_emb", None)
    rates = getattr(rotary, "inv_freq", torch.zeros(0)).cpu()
    wanted = 10_000.0 ** (-torch.arange(0, head, 2) / head)
    if rates.shape != wanted.shape or not torch.allclose(rates.float(), wanted, rtol=1e-4):
        raise Differs("its positions turn at other rates")
