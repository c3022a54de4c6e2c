"""Sites of families of models: the names of their blocks' modules in public libraries."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import nn

from stability.recording.external.blocks import Parts, Stack, sites_of
from stability.recording.external.sites import Sites, matching
from stability.recording.external.structure import AUTO, found_blocks, is_norm


class Blocks(NamedTuple):
    """One kind of block of a family."""

    parts: Parts
    final_norm: str = ""
    """Name of the norm after the last block, beside the list of blocks, or with a dot in front
    beside the module that holds the list; may be absent."""


PRESETS: Mapping[str, Sequence[Blocks]] = {
    # transformers.GPT2Model and its heirs; nanoGPT
    "gpt2": [
        Blocks({"norm1": ("ln_1",), "attn": ("attn",), "norm2": ("ln_2",), "mlp": ("mlp",)}, "ln_f")
    ],
    # transformers.LlamaModel; Mistral, Qwen
    "llama": [
        Blocks(
            {
                "norm1": ("input_layernorm",),
                "attn": ("self_attn",),
                "norm2": ("post_attention_layernorm",),
                "mlp": ("mlp",),
            },
            "norm",
        )
    ],
    # transformers.BertModel; RoBERTa, ELECTRA
    "bert": [
        Blocks(
            {
                "attn": ("attention", "attention.output.dropout"),
                "norm1": ("attention.output.LayerNorm",),
                "mlp": ("intermediate", "output.dense", "output.dropout"),
                "norm2": ("output.LayerNorm",),
            }
        )
    ],
    # transformers.T5Model; encoder and decoder
    "t5": [
        Blocks(
            {
                "norm1": ("layer.0.layer_norm",),
                "attn": ("layer.0.SelfAttention", "layer.0.dropout"),
                "norm2": ("layer.1.layer_norm",),
                "mlp": ("layer.1.DenseReluDense", "layer.1.dropout"),
            },
            "final_layer_norm",
        ),
        Blocks(
            {
                "norm1": ("layer.0.layer_norm",),
                "attn": ("layer.0.SelfAttention", "layer.0.dropout"),
                "norm2": ("layer.1.layer_norm",),
                "cross_attn": ("layer.1.EncDecAttention", "layer.1.dropout"),
                "norm3": ("layer.2.layer_norm",),
                "mlp": ("layer.2.DenseReluDense", "layer.2.dropout"),
            },
            "final_layer_norm",
        ),
    ],
    "vit": [
        # timm.VisionTransformer
        Blocks(
            {"norm1": ("norm1",), "attn": ("attn",), "norm2": ("norm2",), "mlp": ("mlp",)}, "norm"
        ),
        # transformers.ViTModel, version 5
        Blocks(
            {
                "norm1": ("layernorm_before",),
                "attn": ("attention",),
                "norm2": ("layernorm_after",),
                "mlp": ("mlp",),
            },
            "layernorm",
        ),
        # transformers.ViTModel, version 4, whose last module also adds the residual
        Blocks(
            {
                "norm1": ("layernorm_before",),
                "attn": ("attention",),
                "norm2": ("layernorm_after",),
                "mlp": ("intermediate", "output.dense", "output.dropout"),
            },
            ".layernorm",
        ),
    ],
    # torch.nn.TransformerEncoder and TransformerDecoder
    "torch": [
        Blocks(
            {
                "norm1": ("norm1",),
                "attn": ("self_attn", "dropout1"),
                "norm2": ("norm2",),
                "mlp": ("linear1", "linear2", "dropout2"),
            },
            "norm",
        ),
        Blocks(
            {
                "norm1": ("norm1",),
                "attn": ("self_attn", "dropout1"),
                "norm2": ("norm2",),
                "cross_attn": ("multihead_attn", "dropout2"),
                "norm3": ("norm3",),
                "mlp": ("linear1", "linear2", "dropout3"),
            },
            "norm",
        ),
    ],
}
"""Family -> its kinds of blocks. `tests/recording/external/test_presets.py` has each class."""


def chosen_sites(model: nn.Module, sites: str) -> Sites:
    """The sites that ``sites`` of `record` names: a preset, `AUTO`, or a pattern.

    Raises:
        ValueError: the model has none of these modules, or the text is neither.
    """
    if sites in PRESETS:
        return _preset(model, sites)
    if sites == AUTO:
        return _search(model)
    try:
        return matching(model, sites)
    except ValueError as error:
        if sites.isidentifier():
            raise ValueError(f"sites={sites}: no such preset; {LEGAL}") from error
        raise


LEGAL = f"choose from {', '.join([AUTO, *PRESETS])}, or give a pattern of module names"


def _search(model: nn.Module) -> Sites:
    """The blocks of all families, and those that a search of the structure finds beside them."""
    families = {name: _stacks(model, kinds) for name, kinds in PRESETS.items()}
    known = {name: stack for stacks in families.values() for name, stack in stacks.items()}
    found = found_blocks(model, known)
    fitting = [name for name, stacks in families.items() if len(stacks) == found.stacks]
    return found._replace(family=fitting[0] if fitting else "")


def _preset(model: nn.Module, name: str) -> Sites:
    stacks = _stacks(model, PRESETS[name])
    if not stacks:
        wanted = " or ".join(
            ", ".join(names[0] for names in kind.parts.values()) for kind in PRESETS[name]
        )
        raise ValueError(
            f"sites={name}: {type(model).__name__} has no list of blocks with {wanted}; {LEGAL}"
        )
    return sites_of(model, stacks)._replace(family=name)


def _stacks(model: nn.Module, kinds: Sequence[Blocks]) -> dict[str, Stack]:
    """The lists of blocks of these kinds, by dotted name."""
    modules = dict(model.named_modules())
    found = {}
    for name, module in modules.items():
        blocks = list(module.named_children())
        if not isinstance(module, nn.ModuleList | nn.Sequential) or not blocks:
            continue
        for kind in kinds:
            if all(_fits(block, kind.parts) for _, block in blocks):
                final = _beside(name, kind.final_norm)
                norm = final if final in modules and is_norm(modules[final]) else None
                found[name] = Stack([(child, kind.parts) for child, _ in blocks], norm)
    return found


def _beside(name: str, other: str) -> str:
    """The dotted name of a module beside one, or beside the module that holds it."""
    held_by = name.split(".")[: -2 if other.startswith(".") else -1]
    return ".".join([*held_by, other.lstrip(".")])


def _fits(block: nn.Module, parts: Parts) -> bool:
    """Whether a block has all these modules, and no norm beside those among them."""
    inside = {name for name, _ in block.named_modules()}
    wanted = {name for names in parts.values() for name in names}
    norms = {name for name, child in block.named_children() if is_norm(child)}
    return wanted <= inside and norms <= wanted
