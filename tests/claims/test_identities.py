"""Claims that hold by construction: experiments/ names these tests as their proof."""

import pytest
import torch

from call_order import calls
from stability.model import build
from stability.model.gpt import draw
from stability.parts.placements import NoNorm, Post, Pre
from tiny import make_config


@pytest.mark.parametrize("scale", [1e-3, 0.1, 10.0])
def test_post_resets_the_variance_to_c_over_c_plus_eps(scale):
    config = make_config({"model.sublayers": "mlp"}, norm="post", dtype="fp64")
    model = build.model_of(config, 32).double()
    seen = {}
    sublayer = model.blocks[0].sublayers()["mlp"]
    sublayer.branch_out.register_forward_hook(lambda m, i, out: seen.update(branch=out))
    x_BTD = scale * draw(0, "x", torch.Size((2, 3, config.model.width)))
    y_BTD = sublayer(x_BTD)
    C = (x_BTD + seen["branch"]).var(-1, correction=0)
    eps = config.norm_type.eps
    torch.testing.assert_close(y_BTD.var(-1, correction=0), C / (C + eps))


@pytest.mark.parametrize("cls", [Pre, Post, NoNorm])
def test_a_block_adds_to_the_stream_twice(cls):
    model = build.model_of(make_config(), 32)
    names = list(model.blocks[0].sublayers())
    assert names == ["attn", "mlp"]
    traced = [call for name in names for call in calls(cls(2, 0, name))]
    assert traced.count("add") == 2
