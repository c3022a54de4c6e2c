"""The GPT is what its config says: equations, sizes, starts, and the GPT-2 of the papers."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from by_hand import ACTIVATIONS, EQUATIONS, STREAM_EQUATIONS, ByHand
from stability.config.knobs import DTYPES, Config
from stability.config.names import Key
from stability.model import build, gpt
from stability.model.gpt import GPT, KEPT, draw, loss_sum, segment
from stability.model.sublayers import Attention, rotary
from stability.parts.batches import IGNORED
from stability.parts.placements import norms_used
from tiny import composed, make_config, options

VOCAB = 32


def model_of(changes=None, vocab=VOCAB, **over) -> GPT:
    return build.model_of(make_config(changes, **over), vocab)


def tokens(batch: int = 3, time: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCAB, (batch, time), generator=torch.Generator().manual_seed(seed))


def shake(model: GPT) -> GPT:
    """Move every parameter off its start, so that no bias or gamma can hide."""
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.add_(0.1 * draw(i, "shake", p.shape))
    return model


# What it computes -------------------------------------------------------------------------------

VARIANTS = [
    *({"norm": name} for name in (*EQUATIONS, *STREAM_EQUATIONS)),
    *({"norm": name, "norm_type": "rmsnorm"} for name in ("pre", "peri", "deepnorm")),
    *({"activation": name, "model.mlp_ratio": 2.5} for name in ACTIVATIONS),
    {"model.position": "rope"},
    {"model.position": "none", "model.causal": False},
    {"model.attention": "math"},
    {"model.bias": False},
    {"model.tie_embeddings": False},
    {"model.sublayers": "linear", "norm": "post"},
    {"model.sublayers": "mlp", "norm": "peri"},
    {"model.heads": 1, "depth": 1},
]


def pairs() -> list[tuple[str, str]]:
    """Every placement with every norm type, or with one where the placement has no norm."""
    found = []
    for norm in options("norm"):
        placement = build.parts_of(make_config(norm=norm)).placement(0, "attn")
        uses = placement.final_norm or norms_used(placement)
        found += [(norm, norm_type) for norm_type in options("norm_type")[: None if uses else 1]]
    return found


def split(variant: dict) -> tuple[dict, dict]:
    dotted = {k: v for k, v in variant.items() if "." in k}
    return dotted, {k: v for k, v in variant.items() if "." not in k}


@pytest.mark.parametrize("group", ["norm", "activation"])
def test_every_option_has_its_equation_by_hand(group):
    found = {"norm": EQUATIONS | STREAM_EQUATIONS, "activation": ACTIVATIONS}[group]
    assert found.keys() == set(options(group))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: " ".join(map(str, v.values())))
def test_the_model_is_its_equation_written_by_hand(variant):
    changes, over = split(variant)
    config = make_config(changes, dtype="fp64", **over)
    model = shake(build.model_of(config, VOCAB))
    twin = ByHand(config, model.weights())
    torch.testing.assert_close(model(tokens()), twin(tokens()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: " ".join(map(str, v.values())))
def test_sites_and_weights_are_named_as_the_tables_name_them(variant):
    changes, over = split(variant)
    config = make_config(changes, dtype="fp64", **over)
    model = build.model_of(config, VOCAB)
    twin = ByHand(config, model.weights())
    twin(tokens())
    assert set(model.sites()) == set(twin.seen)
    weights = list(model.weights().values())
    assert {id(p) for p in weights} == {id(p) for p in model.parameters()}
    assert len({id(p) for p in weights}) == len(weights)


@pytest.mark.parametrize("changes", [{}, {"model.position": "rope"}], ids=["learned", "rope"])
@pytest.mark.parametrize(("norm", "norm_type"), pairs())
def test_a_later_token_does_not_change_earlier_logits(norm, norm_type, changes):
    model = shake(model_of(changes, norm=norm, norm_type=norm_type)).eval()
    before, x = model(tokens()), tokens()
    x[:, 5] = (x[:, 5] + 1) % VOCAB
    after = model(x)
    assert torch.equal(after[:, :5], before[:, :5])
    assert not torch.equal(after[:, 5:], before[:, 5:])


def test_without_a_causal_mask_it_does():
    model = shake(model_of({"model.causal": False}))
    x = tokens()
    x[:, 5] = (x[:, 5] + 1) % VOCAB
    assert not torch.equal(model(x)[:, 0], model(tokens())[:, 0])


def test_the_math_kernel_keeps_the_gradient_where_softmax_saturates():
    """Every row is one-hot, so that scores carry none and size changes nothing."""

    def gradient(size: float) -> torch.Tensor:
        config = make_config({"model.attention": "math"})
        shape = config.model
        attention = Attention(shape, build.activation_of(config))
        x_BTD = draw(1, "x", (2, 8, shape.width))
        for i, (name, p) in enumerate(attention.named_parameters()):
            nn.init.zeros_(p) if name.endswith("bias") else p.data.copy_(draw(i, name, p.shape))
        x_BTD = (size * x_BTD).float().requires_grad_()
        attention(x_BTD).sum().backward()
        return x_BTD.grad

    torch.testing.assert_close(gradient(1e4), gradient(1e15))


def test_with_rope_scores_depend_on_the_distance_alone():
    q, k = (draw(0, n, torch.Size([1, 1, 1, 8])).expand(-1, -1, 6, -1) for n in "qk")
    scores = (rotary(q) @ rotary(k).transpose(-1, -2))[0, 0]
    for distance in range(-5, 6):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-12, atol=1e-12)


def test_dropout_drops_in_training_and_not_in_evaluation():
    model = model_of({"model.dropout": 0.5})
    assert not torch.equal(model(tokens()), model(tokens()))
    model.eval()
    assert torch.equal(model(tokens()), model(tokens()))


def test_the_loss_is_the_sum_over_counted_tokens_of_upcast_logits():
    logits, y = draw(0, "l", torch.Size([2, 4, VOCAB])), tokens(2, 4)
    y[0, 1:] = IGNORED
    by_hand = sum(
        -math.log(logits[b, t].exp()[y[b, t]] / logits[b, t].exp().sum())
        for b in range(2)
        for t in range(4)
        if y[b, t] != IGNORED
    )
    assert loss_sum(logits, y).item() == pytest.approx(by_hand)
    assert loss_sum(logits.half(), y).dtype == torch.float32


# GPT-2 ------------------------------------------------------------------------------------------

PUBLISHED = {  # parameters of openai-community/gpt2, gpt2-medium, gpt2-large, gpt2-xl
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_gpt2_has_the_published_number_of_parameters(name, parameters):
    config = Config.from_plain(composed(model=name))
    with torch.device("meta"):
        model = GPT(config.model, config.depth, config.model.vocab, build.parts_of(config))
    assert sum(p.numel() for p in model.weights().values()) == parameters
    assert config.choices["activation"] == "gelu_tanh"  # gelu_new in its own config.json


class GPT2(nn.Module):
    """GPT-2 of modules that others wrote: torch's encoder layers, norm first, causal mask, tied."""

    def __init__(self, width: int, heads: int, depth: int, context: int) -> None:
        super().__init__()
        gelu = partial(F.gelu, approximate="tanh")
        self.wte, self.wpe = nn.Embedding(VOCAB, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, gelu, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        time = tokens_BT.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(time, dtype=torch.float64)
        x = self.wte(tokens_BT) + self.wpe(torch.arange(time))
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.norm(x) @ self.wte.weight.T

    @torch.no_grad()
    def load(self, w: dict[Key, torch.Tensor]) -> None:
        self.wte.weight.copy_(w[Key(-1, "embed", "wte")])
        self.wpe.weight.copy_(w[Key(-1, "embed", "wpe")])
        depth = len(self.layers)
        norms = [(self.norm, depth, "head")]
        for i, layer in enumerate(self.layers):
            norms += [(layer.norm1, i, "attn"), (layer.norm2, i, "mlp")]
            attention = layer.self_attn
            for part, name in (("weight", ""), ("bias", ".bias")):
                fused = torch.cat([w[Key(i, "attn", n + name)] for n in "qkv"])
                getattr(attention, f"in_proj_{part}").copy_(fused)
                getattr(attention.out_proj, part).copy_(w[Key(i, "attn", f"attn_out{name}")])
                getattr(layer.linear1, part).copy_(w[Key(i, "mlp", f"mlp_in{name}")])
                getattr(layer.linear2, part).copy_(w[Key(i, "mlp", f"mlp_out{name}")])
        for norm, layer, sublayer in norms:
            norm.weight.copy_(w[Key(layer, sublayer, "norm.weight")])
            norm.bias.copy_(w[Key(layer, sublayer, "norm.bias")])


def test_pre_layernorm_is_the_function_of_gpt2_weight_for_weight():
    tanh = {"activation": "gelu_tanh"}
    model = shake(model_of(tanh, dtype="fp64", init="gpt2", norm="pre", norm_type="layernorm"))
    twin = GPT2(width=16, heads=2, depth=2, context=8).double()
    twin.load(model.weights())
    assert sum(p.numel() for p in twin.parameters()) == sum(p.numel() for p in model.parameters())
    torch.testing.assert_close(model(tokens()), twin(tokens()), rtol=1e-11, atol=1e-11)


# Every option with every other ------------------------------------------------------------------


@pytest.mark.parametrize("init", options("init"))
@pytest.mark.parametrize(("norm", "norm_type"), pairs())
def test_lesson_01_every_sublayer_runs_and_every_parameter_has_a_gradient(norm, norm_type, init):
    changes = {"train.batch_size": 2, "record.kinds": ["act", "grad"]}
    config = make_config(changes, norm=norm, norm_type=norm_type, init=init)
    for dtype in DTYPES:
        step_once(build.build(config.changed({"dtype": dtype})))


def step_once(built: build.Built) -> None:
    """One step with the recorder on: it refuses a site at which nothing passed."""
    x, y = map(torch.from_numpy, built.source.batch(0, 2, 8, seed=0))
    built.recorder.start()
    with built.precision.context(built.device):
        loss = loss_sum(built.model(x), y) / y.numel()
    loss.backward()
    built.recorder.gradients()
    rows = built.recorder.take().rows(run="x", step=0)
    sites = len(built.model.sites())
    unseen = 2 * built.config.depth  # scores and attn_rows have no gradient
    assert loss.isfinite()
    assert len(rows["kind"]) == 2 * sites - unseen
    for p in built.model.parameters():
        assert p.grad.dtype == p.dtype == built.precision.param
    built.optimizer.gradients(built.loss_scale.scale)
    built.optimizer.step(0, torch.tensor(0.0))
    assert all(p.isfinite().all() for p in built.model.parameters())


@pytest.mark.parametrize("depth", [1, 6, 96, 384, 1000])
def test_checkpointing_keeps_as_little_as_segments_of_one_length_can(depth):
    def kept(blocks: int) -> float:
        return depth / blocks + KEPT * blocks

    least = min(range(1, depth + 1), key=kept)
    assert kept(segment(depth)) <= 1.06 * kept(least)
    assert segment(depth) == max(1, round(math.sqrt(depth / KEPT)))


def test_checkpointing_recomputes_a_segment_of_blocks_at_a_time(monkeypatch):
    """Each block is passed twice, and in the second pass in the segments' reversed order."""
    monkeypatch.setattr(gpt, "KEPT", 1)
    model, passed = model_of(depth=5, checkpointing=True), []
    for layer, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda *_, layer=layer: passed.append(layer))
    x_BT = tokens()
    loss_sum(model(x_BT), x_BT).backward()
    assert passed == [0, 1, 2, 3, 4, 4, 2, 3, 0, 1]
