"""Presets of `sites`: the modules of families of models, and what a search by structure finds."""

import re
from itertools import chain

import pandas as pd
import pytest
import torch
from torch import nn

import stability
from hf_models import MODELS, tokens
from stability.recording.external.presets import PRESETS, chosen_sites
from stability.recording.external.structure import found_blocks
from transformer_families import FAMILIES


class Seen:
    """What plain hooks see, under the keys that the tables use."""

    def __init__(self, model, stacks):
        self.tensors = {}
        for side, path, parts, final in stacks:
            blocks = list(model.get_submodule(path))
            for layer, block in enumerate(blocks):
                own = f"{path}.{layer}"
                self._watch(model, own, own, (layer, side or "block"), ("resid_pre", "resid_post"))
                for name, (first, last) in parts.items():
                    sublayer = f"{side}.{name}" if side else name
                    self._branch(model, f"{own}.{first}", f"{own}.{last}", (layer, sublayer))
                assert block is model.get_submodule(own)
            if final:
                sublayer = f"{side}.final_norm" if side else "final_norm"
                self._branch(model, final, final, (len(blocks), sublayer))

    def _branch(self, model, first, last, place):
        self._watch(model, first, last, place, ("branch_in", "branch_out"))

    def _watch(self, model, first, last, place, sites):
        def before(module, args, kwargs):
            self._see((*place, sites[0]), next(chain(args, kwargs.values())))

        def after(module, args, kwargs, output):
            self._see((*place, sites[1]), output[0] if isinstance(output, tuple) else output)

        model.get_submodule(first).register_forward_pre_hook(before, with_kwargs=True)
        model.get_submodule(last).register_forward_hook(after, with_kwargs=True)

    def _see(self, key, tensor):
        tensor.retain_grad() if tensor.requires_grad else None
        self.tensors[key] = tensor


def recorded(model, sites, x, folder):
    with stability.record(model, folder, sites=sites):
        found = model(**x) if isinstance(x, dict) else model(x)
        loss = found.loss if hasattr(found, "loss") else found.square().mean()
        loss.backward()
    frame = pd.read_parquet(folder / "layers.parquet")
    frame = frame.astype({"kind": str, "site": str, "sublayer": str})
    return frame[~frame["site"].isin(["scores", "attn_rows"])]


def assert_rows_are_those_of_hooks(rows, seen):
    for kind in ("act", "grad"):
        table = rows[rows["kind"] == kind].set_index(["layer", "sublayer", "site"])
        tensors = seen if kind == "act" else {k: t.grad for k, t in seen.items() if t.requires_grad}
        assert set(table.index) == set(tensors)
        for key, tensor in tensors.items():
            assert table["numel"][key] == tensor.numel()
            rms = float(tensor.detach().double().square().mean().sqrt())
            assert table["rms"][key] == pytest.approx(rms, rel=1e-5)


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_those_of_plain_hooks_on_the_named_modules(name, auto, tmp_path):
    torch.manual_seed(0)
    family = FAMILIES[name]
    model = family.make()
    seen = Seen(model, family.stacks)
    rows = recorded(model, "auto" if auto else family.preset, torch.randn(4, 5, 8), tmp_path / "r")
    assert_rows_are_those_of_hooks(rows, seen.tensors)
    weights = rows[rows["kind"] == "weight"]
    assert (weights["sublayer"] != "outside").all()
    assert not weights.duplicated(["layer", "sublayer", "site"]).any()
    assert len(weights) == sum(1 for _ in model.parameters())


def test_parameters_lie_in_the_sublayer_that_uses_them():
    def key(family, preset, name):
        return chosen_sites(FAMILIES[family].make(), preset).key_of(name)

    block = "bert.encoder.layer.1."
    assert key("bert", "bert", f"{block}output.dense.bias") == (1, "mlp", "output.dense.bias")
    assert key("bert", "bert", f"{block}intermediate.0.bias") == (1, "mlp", "intermediate.0.bias")
    attention = f"{block}attention."
    assert key("bert", "bert", f"{attention}self.q.bias") == (1, "attn", "self.q.bias")
    assert key("bert", "bert", f"{attention}output.LayerNorm.bias") == (1, "norm1", "bias")
    assert key("torch", "torch", "decoder.norm.bias") == (2, "decoder.final_norm", "bias")
    assert key("t5", "t5", "decoder.block.0.layer.1.EncDecAttention.q.bias") == (
        *(0, "decoder.cross_attn", "q.bias"),
    )


def test_every_kind_of_block_of_a_preset_is_among_the_families():
    described = [stack for family in FAMILIES.values() for stack in family.stacks]
    kinds = [kind for kinds in PRESETS.values() for kind in kinds]
    assert len(described) == len(kinds)
    assert {family.preset for family in FAMILIES.values()} == set(PRESETS)


@pytest.mark.parametrize(
    ("name", "preset"), [(n, p) for n, f in FAMILIES.items() for p in PRESETS if p != f.preset]
)
def test_a_preset_for_another_family_is_refused_and_the_legal_ones_are_named(
    name, preset, tmp_path
):
    with pytest.raises(ValueError, match=f"^sites={preset}: .* has no list of blocks") as error:
        stability.record(FAMILIES[name].make(), tmp_path / "run", preset)
    assert all(legal in str(error.value) for legal in ("auto", *PRESETS))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_an_unknown_name_is_refused_with_the_list(tmp_path):
    listed = re.escape("choose from auto, gpt2, llama, bert, t5, vit, torch, or give a pattern")
    with pytest.raises(ValueError, match=f"^sites=gtp2: no such preset; {listed}"):
        stability.record(FAMILIES["gpt2"].make(), tmp_path / "run", "gtp2")


def test_blocks_with_another_norm_are_not_of_the_family(tmp_path):
    """Gemma 2 has Llama's names and two more norms: its second norm is of attention's output."""
    model = FAMILIES["llama"].make()
    for block in model.model.layers:
        block.pre_feedforward_layernorm = nn.LayerNorm(8)
    with pytest.raises(ValueError, match="sites=llama: Model has no list"):
        chosen_sites(model, "llama")
    assert chosen_sites(model, "auto").places["model.layers.1.input_layernorm"] == (
        *(1, "norm.input_layernorm"),
    )


def test_a_search_finds_the_blocks_of_several_families_and_unknown_ones():
    model = nn.ModuleDict(
        {
            "encoder": FAMILIES["bert"].make(),
            "decoder": FAMILIES["gpt2"].make(),
            "other": nn.Sequential(Block(), Block()),
        }
    )
    found = chosen_sites(model, "auto")
    assert found.places["encoder.bert.encoder.layer.1.output.dense"] == (1, "encoder.mlp")
    assert found.places["decoder.transformer.h.1.ln_1"] == (1, "decoder.norm1")
    assert found.places["other.1.norm"] == (1, "norm")
    assert (found.family, found.stacks) == ("", 3)
    (said,) = found.left_out
    assert said.startswith("sites=auto: the attn of Block is no module of its own")
    assert chosen_sites(model["decoder"], "auto").family == "gpt2"


class TwoMatrices(nn.Module):
    """An MLP of a class whose name says nothing."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln, self.self_attention = nn.LayerNorm(8), SelfAttention()
        self.ff, self.proj = TwoMatrices(), nn.Linear(8, 8)

    def forward(self, x):
        x = x + self.self_attention(self.ln(x))
        return x + self.proj(self.ff(x))


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v)


def test_the_one_child_with_two_matrices_is_the_mlp():
    found = chosen_sites(nn.Sequential(Own(), Own()), "auto")
    assert found.places["1.ff"] == (1, "mlp")
    assert found.places["1.self_attention"] == (1, "attn")
    assert not found.left_out
    two = nn.Sequential(Own(), Own())
    for block in two:
        block.other = TwoMatrices()
    assert "the mlp of Own is no module" in chosen_sites(two, "auto").left_out[0]


def test_half_an_encoder_decoder_has_plain_names():
    model = FAMILIES["t5"].make().encoder
    found = chosen_sites(model, "t5")
    assert found.places["block.1"] == (1, "block")
    assert found.places["block.1.layer.1.DenseReluDense"] == (1, "mlp")
    assert found.places["final_layer_norm"] == (2, "final_norm")
    assert found.depth == 2


class MLP(nn.Sequential):
    """Two matrices."""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(8), MLP(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


def test_values_of_unknown_blocks_are_those_of_plain_hooks(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(Block(), Block()))
    parts = {"mlp": ("mlp", "mlp"), "norm": ("norm", "norm")}
    seen = Seen(model, [("", "1", parts, None)])
    rows = recorded(model, "auto", torch.randn(4, 5, 8), tmp_path / "run")
    assert_rows_are_those_of_hooks(rows, seen.tensors)


class Split(nn.Module):
    """A block whose MLP is not one module."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        x = x + self.attention(x, x, x)[0]
        return x + self.down(self.up(x).relu())


def test_encoder_and_decoder_of_unknown_blocks_are_apart():
    model = nn.ModuleDict(
        {"encoder": nn.Sequential(Split(), Split()), "decoder": nn.Sequential(*(Split(),) * 1)}
    )
    found = found_blocks(model)
    assert found.places["encoder.1"] == (1, "encoder")
    assert found.places["encoder.1.attention"] == (1, "encoder.attn")
    assert found.places["decoder.0"] == (0, "decoder")
    assert found.depth == 2


def test_several_attentions_of_an_unknown_block_have_their_own_names():
    block = Split()
    block.memory = nn.MultiheadAttention(8, 2)
    found = found_blocks(nn.Sequential(nn.Sequential(block)))
    assert found.places["0.0.attention"] == (0, "attn.attention")
    assert found.places["0.0.memory"] == (0, "attn.memory")


class WithNorm(nn.Module):
    """A branch with its norm and its residual, as T5 has it."""

    def __init__(self, branch, *beside):
        super().__init__()
        self.norm, self.inside, self.beside = nn.LayerNorm(8), branch, nn.ModuleList(beside)


class FFN(WithNorm):
    pass


@pytest.mark.parametrize(("beside", "is_found"), [((), True), ((nn.Linear(8, 8),), False)])
def test_a_branch_inside_a_module_with_a_norm_is_found_if_it_is_whole(beside, is_found):
    """BERT's attention has its output matrix beside the module that is called attention."""
    mlp = MLP(nn.Linear(8, 8))
    block = nn.Sequential(nn.LayerNorm(8), FFN(mlp, *beside))
    found = found_blocks(nn.Sequential(nn.Sequential(block, nn.Sequential(*block))))
    assert (mlp in found.of) is is_found


def test_what_is_not_found_is_said(tmp_path):
    model = nn.Sequential(nn.Sequential(Split(), Split()))
    with (
        pytest.warns(RuntimeWarning, match="sites=auto: the mlp of Split is no module"),
        stability.record(model, tmp_path / "run", "auto"),
    ):
        model(torch.randn(2, 3, 8)).sum().backward()


def test_a_model_without_blocks_is_refused():
    with pytest.raises(ValueError, match=r"sites=auto: found no stack"):
        found_blocks(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize(
    ("name", "families"),
    [(n, ["vit5", "vit4"] if n == "vit" else [n]) for n in MODELS],
)
def test_models_of_transformers_have_these_modules(name, families, auto, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = MODELS[name](transformers)
    inside = {name for name, _ in model.named_modules()}
    (family,) = (f for f in map(FAMILIES.get, families) if f.stacks[0][1] in inside)
    seen = Seen(model, family.stacks)
    x = {"pixel_values": torch.randn(3, 3, 8, 8)} if name == "vit" else tokens()
    if name == "vit":
        x["labels"] = torch.tensor([0, 1, 0])
    rows = recorded(model, "auto" if auto else family.preset, x, tmp_path / "run")
    assert_rows_are_those_of_hooks(rows, seen.tensors)


@pytest.mark.parametrize("auto", [False, True])
def test_models_of_timm_have_these_modules(auto, tmp_path):
    timm = pytest.importorskip("timm")
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=4, num_classes=5
    )
    seen = Seen(model, FAMILIES["timm"].stacks)
    rows = recorded(model, "auto" if auto else "vit", torch.randn(3, 3, 8, 8), tmp_path / "run")
    assert_rows_are_those_of_hooks(rows, seen.tensors)
