"""`sites="auto"`: blocks, attention and MLP found by structure."""

import pandas as pd
import pytest
import torch
from torch import nn

import stability
from stability.recording.external.presets import found_blocks


class MLP(nn.Sequential):
    """Two matrices."""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(8), MLP(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


def test_values_are_those_of_plain_hooks(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(Block(), Block()))
    seen, x = {}, torch.randn(4, 5, 8)
    for layer, block in enumerate(model[1]):
        for sublayer, module, sites in (
            ("block", block, ("resid_pre", "resid_post")),
            ("mlp", block.mlp, ("branch_in", "branch_out")),
        ):
            module.register_forward_hook(
                lambda m, a, y, k=(layer, sublayer), s=sites: seen.update(
                    {(*k, s[0]): a[0], (*k, s[1]): y}
                )
            )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stability.record(model, tmp_path / "run", sites="auto"):
        model(x).square().mean().backward()
        optimizer.step()
    table = pd.read_parquet(tmp_path / "run" / "layers.parquet").query("kind == 'act'")
    rows = table.set_index(["layer", "sublayer", "site"]).rms
    assert set(rows.index) == set(seen)
    for key, tensor in seen.items():
        assert rows[key] == pytest.approx(float(tensor.detach().square().mean().sqrt()), rel=1e-5)


def test_encoder_and_decoder_are_apart():
    found = found_blocks(nn.Transformer(8, 2, 2, 3, 16, batch_first=True))
    assert found.places["encoder.layers.1"] == (1, "encoder")
    assert found.places["encoder.layers.1.self_attn"] == (1, "encoder.attn")
    assert found.places["decoder.layers.2"] == (2, "decoder")
    assert found.depth == 3
    assert found.places["decoder.layers.0.self_attn"] == (0, "decoder.attn.self_attn")
    assert found.places["decoder.layers.0.multihead_attn"] == (0, "decoder.attn.multihead_attn")
    assert found.left_out == (
        "sites=auto: found no mlp alone in TransformerEncoderLayer",
        "sites=auto: found no mlp alone in TransformerDecoderLayer",
    )


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
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    with (
        pytest.warns(RuntimeWarning, match="found no mlp alone in Transformer"),
        stability.record(model, tmp_path / "run", "auto"),
    ):
        x = torch.randn(2, 3, 8)
        model(x, x).sum().backward()


def test_a_model_without_blocks_is_refused():
    with pytest.raises(ValueError, match=r"sites=auto: found no stack"):
        found_blocks(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
