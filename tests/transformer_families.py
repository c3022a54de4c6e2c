"""Small models with the module names of public libraries: one for each kind of block of a preset.

`MODULES` gives, by hand, the module whose input and the one whose output each sublayer of a block
has, and the norm after the last block.
"""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS = 8, 2


class Attention(nn.Module):
    """Attention over what it reads, or over a memory; the softmax is fused or not."""

    def __init__(self, causal=False, fused=True):
        super().__init__()
        self.causal, self.fused = causal, fused
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, memory=None):
        q, k, v = (
            p(t).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for p, t in (
                (self.q, x),
                *((p, x if memory is None else memory) for p in (self.k, self.v)),
            )
        )
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
            if self.causal:
                unseen = torch.ones(scores.shape[-2:]).triu(1).bool()
                scores = scores.masked_fill(unseen, torch.finfo(scores.dtype).min)
            y = F.softmax(scores, dim=-1) @ v
        return self.o(y.transpose(1, 2).flatten(-2))


class MLP(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))


def tree(**modules):
    return nn.ModuleDict(modules)


class PreNorm(nn.Module):
    """x + attn(norm(x)), x + mlp(norm(x)), under the names of a family."""

    def __init__(self, norm1, attn, norm2, mlp, fused=True, causal=False):
        super().__init__()
        self.names = norm1, attn, norm2, mlp
        for name, module in zip(
            self.names,
            (nn.LayerNorm(WIDTH), Attention(causal, fused), nn.LayerNorm(WIDTH), MLP()),
            strict=True,
        ):
            self.add_module(name, module)

    def forward(self, x):
        norm1, attn, norm2, mlp = (self.get_submodule(name) for name in self.names)
        x = x + attn(norm1(x))
        return x + mlp(norm2(x))


class ViT4(nn.Module):
    """A block whose last module adds the residual itself."""

    def __init__(self):
        super().__init__()
        self.layernorm_before, self.layernorm_after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.intermediate = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU())
        self.output = tree(dense=nn.Linear(16, WIDTH), dropout=nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attention(self.layernorm_before(x))
        out = self.output
        return x + out.dropout(out.dense(self.intermediate(self.layernorm_after(x))))


class Bert(nn.Module):
    def __init__(self):
        super().__init__()

        def output(width):
            return tree(
                dense=nn.Linear(width, WIDTH),
                LayerNorm=nn.LayerNorm(WIDTH),
                dropout=nn.Dropout(0.1),
            )

        self.attention = BertAttention(output(WIDTH))
        self.intermediate = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU())
        self.output = output(16)

    def forward(self, x):
        x = self.attention(x)
        out = self.output
        return out.LayerNorm(x + out.dropout(out.dense(self.intermediate(x))))


class BertAttention(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.self = Attention()
        self.output = output

    def forward(self, x):
        out = self.output
        return out.LayerNorm(x + out.dropout(out.dense(self.self(x))))


class T5(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.layer = nn.ModuleList()
        inside = {"SelfAttention": Attention(causal=decoder)}
        inside |= {"EncDecAttention": Attention()} if decoder else {}
        inside |= {"DenseReluDense": MLP()}
        for name, module in inside.items():
            self.layer.append(
                tree(layer_norm=nn.RMSNorm(WIDTH), dropout=nn.Dropout(0.1), **{name: module})
            )

    def forward(self, x, memory=None):
        for part in self.layer:
            (branch,) = (m for n, m in part.items() if n not in ("layer_norm", "dropout"))
            others = [memory] if "EncDecAttention" in part else []
            out = branch(part.layer_norm(x), *others)
            x = x + part.dropout(out)
        return x


class Model(nn.Module):
    """Blocks under a dotted name, and what comes after them."""

    def __init__(self, blocks, name, final=None):
        super().__init__()
        self.path, self.final = name, final
        *around, own = name.split(".")
        home = self
        for step in around:
            home.add_module(step, nn.Module())
            home = home.get_submodule(step)
        home.add_module(own, nn.ModuleList(blocks))
        if final:
            self.get_submodule(final.rpartition(".")[0]).add_module(
                final.rpartition(".")[2], nn.LayerNorm(WIDTH)
            )

    def forward(self, x):
        for block in self.get_submodule(self.path):
            x = block(x)
        return self.get_submodule(self.final)(x) if self.final else x


class T5Model(nn.Module):
    def __init__(self):
        super().__init__()
        for side in ("encoder", "decoder"):
            blocks = nn.ModuleList(T5(side == "decoder") for _ in range(2))
            norm = nn.RMSNorm(WIDTH)
            self.add_module(side, tree(block=blocks, final_layer_norm=norm))

    def forward(self, x):
        memory = x
        for block in self.encoder.block:
            memory = block(memory)
        memory = self.encoder.final_layer_norm(memory)
        for block in self.decoder.block:
            x = block(x, memory)
        return self.decoder.final_layer_norm(x)


class TorchModel(nn.Transformer):
    def __init__(self):
        super().__init__(WIDTH, HEADS, 2, 2, 16, batch_first=True)

    def forward(self, x):
        return super().forward(x, x)


def pre_norm(*names):
    return lambda: [PreNorm(*names) for _ in range(2)]


def same(**modules):
    """Sublayers of which one module is all."""
    return {name: (module, module) for name, module in modules.items()}


T5_START = same(norm1="layer.0.layer_norm", norm2="layer.1.layer_norm") | {
    "attn": ("layer.0.SelfAttention", "layer.0.dropout")
}
T5_ENCODER = T5_START | {"mlp": ("layer.1.DenseReluDense", "layer.1.dropout")}
T5_DECODER = T5_START | {
    "cross_attn": ("layer.1.EncDecAttention", "layer.1.dropout"),
    "norm3": ("layer.2.layer_norm", "layer.2.layer_norm"),
    "mlp": ("layer.2.DenseReluDense", "layer.2.dropout"),
}
TORCH_START = same(norm1="norm1", norm2="norm2") | {"attn": ("self_attn", "dropout1")}
TORCH_ENCODER = TORCH_START | {"mlp": ("linear1", "dropout2")}
TORCH_DECODER = TORCH_START | {
    "cross_attn": ("multihead_attn", "dropout2"),
    "norm3": ("norm3", "norm3"),
    "mlp": ("linear1", "dropout3"),
}
GPT2 = same(norm1="ln_1", attn="attn", norm2="ln_2", mlp="mlp")
LLAMA = same(norm1="input_layernorm", attn="self_attn", norm2="post_attention_layernorm", mlp="mlp")
VIT5 = same(norm1="layernorm_before", attn="attention", norm2="layernorm_after", mlp="mlp")
TIMM = same(norm1="norm1", attn="attn", norm2="norm2", mlp="mlp")
BERT = same(norm1="attention.output.LayerNorm", norm2="output.LayerNorm") | {
    "attn": ("attention", "attention.output.dropout"),
    "mlp": ("intermediate", "output.dropout"),
}
VIT4 = same(norm1="layernorm_before", attn="attention", norm2="layernorm_after") | {
    "mlp": ("intermediate", "output.dropout")
}


def family(preset, make, *stacks):
    """A preset, what makes a model, and for each stack: side, blocks, parts, last norm."""
    return SimpleNamespace(preset=preset, make=make, stacks=stacks)


def one(blocks, path, final=None):
    return lambda: Model(blocks(), path, final)


FAMILIES = {
    "gpt2": family(
        "gpt2",
        one(pre_norm("ln_1", "attn", "ln_2", "mlp"), "transformer.h", "transformer.ln_f"),
        ("", "transformer.h", GPT2, "transformer.ln_f"),
    ),
    "llama": family(
        "llama",
        one(
            pre_norm("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"),
            "model.layers",
            "model.norm",
        ),
        ("", "model.layers", LLAMA, "model.norm"),
    ),
    "vit5": family(
        "vit",
        one(
            pre_norm("layernorm_before", "attention", "layernorm_after", "mlp"),
            "vit.layers",
            "vit.layernorm",
        ),
        ("", "vit.layers", VIT5, "vit.layernorm"),
    ),
    "vit4": family(
        "vit",
        one(lambda: [ViT4(), ViT4()], "vit.encoder.layer", "vit.layernorm"),
        ("", "vit.encoder.layer", VIT4, "vit.layernorm"),
    ),
    "timm": family(
        "vit",
        one(pre_norm("norm1", "attn", "norm2", "mlp"), "blocks", "norm"),
        ("", "blocks", TIMM, "norm"),
    ),
    "bert": family(
        "bert",
        one(lambda: [Bert(), Bert()], "bert.encoder.layer"),
        ("", "bert.encoder.layer", BERT, None),
    ),
    "t5": family(
        "t5",
        T5Model,
        ("encoder", "encoder.block", T5_ENCODER, "encoder.final_layer_norm"),
        ("decoder", "decoder.block", T5_DECODER, "decoder.final_layer_norm"),
    ),
    "torch": family(
        "torch",
        TorchModel,
        ("encoder", "encoder.layers", TORCH_ENCODER, "encoder.norm"),
        ("decoder", "decoder.layers", TORCH_DECODER, "decoder.norm"),
    ),
}
