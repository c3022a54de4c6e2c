"""Hooks measure the passes of a step and no other; one that does not fire is an error."""

import pandas as pd
import pytest
import torch
from torch import nn

from stability.config.names import Key
from stability.model import build
from stability.recording.recorder import Recorder
from stability.recording.sites import ScoresSite
from tiny import make_config


def test_a_hook_that_does_not_fire_is_an_error():
    unused, p = nn.Identity(), nn.Parameter(torch.ones(2))
    recorder = Recorder({Key(3, "mlp", "branch_in"): unused}, {Key(0, "mlp", "w"): p})
    recorder.start()
    p.grad = torch.ones(2)
    recorder.gradients()
    with pytest.raises(RuntimeError, match="2 of 2 sites recorded nothing; the first is act at "):
        recorder.take()


def test_a_gradient_that_does_not_arrive_is_an_error():
    seen, p = nn.Identity(), nn.Parameter(torch.ones(2))
    recorder = Recorder({Key(3, "mlp", "branch_in"): seen}, {Key(0, "mlp", "w"): p})
    recorder.start()
    seen(p * 2)
    with pytest.raises(RuntimeError, match="no gradient reached layer 0, mlp, w"):
        recorder.gradients()
    p.grad = torch.ones(2)
    recorder.gradients()
    with pytest.raises(RuntimeError, match=r"1 of 2 .* grad at layer 3, mlp, branch_in"):
        recorder.take()


def test_after_detaching_nothing_is_left_on_the_model():
    built = build.build(make_config())
    assert any(m._forward_hooks for m in built.model.modules())
    built.recorder.detach()
    assert not any(m._forward_hooks for m in built.model.modules())


def test_a_pass_without_gradients_is_not_part_of_the_step():
    """A validation in the middle of a recorded step, say."""
    built = build.build(make_config({"record.kinds": ["act"]}))
    x, _ = map(torch.from_numpy, built.source.batch(0, 4, 8, 0))
    built.recorder.start()
    built.model(x)
    with torch.no_grad():
        built.model(x)
    built.recorder.gradients()
    rows = pd.DataFrame(built.recorder.take().rows(step=0))
    assert rows[rows.site == "branch_in"].numel.unique().tolist() == [4 * 8 * 16]


def test_scores_are_not_rounded_by_autocast():
    q, k = torch.randn(2, 2, 3, 8, 4)
    site = ScoresSite(causal=True, context=8)
    wanted = site.observe((q, k))
    with torch.autocast("cpu", torch.bfloat16):
        found = site.observe((q, k))
    for name in site.names:
        assert torch.equal(found[name], wanted[name]) and found[name].dtype == torch.float32


class Passed(nn.Module):
    """A site with a parameter, so that its output carries a gradient."""

    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.one


@pytest.mark.parametrize(
    ("shape", "token_dim", "has_tokens"),
    [
        ((6,), 1, False),
        ((2, 6), 1, False),
        ((2, 6), 0, False),
        ((2, 3, 4), 0, True),
        ((2, 3, 4), 1, True),
        ((2, 3, 4), 2, True),
        ((2, 3, 4), 3, False),
        ((2, 3, 2, 2), 3, True),
    ],
)
def test_a_tensor_with_batch_tokens_and_features_has_statistics_of_tokens(
    shape, token_dim, has_tokens
):
    """Without a token axis the rest is measured all the same."""
    site, key = Passed(), Key(0, "mlp", "branch_out")
    recorder = Recorder({key: site}, {Key(0, "mlp", "w"): site.one}, token_dim=token_dim)
    recorder.start()
    site(torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)).sum().backward()
    recorder.gradients()
    recorder.updates(recorder.snapshot(), None)
    rows = pd.DataFrame(recorder.take().rows(step=0))
    rows = rows[rows.site == "branch_out"]
    assert rows.kind.tolist() == ["act", "grad"]
    assert rows.numel.tolist() == [torch.Size(shape).numel()] * 2
    assert rows.first_share.notna().tolist() == [has_tokens] * 2
    assert rows.token_rms_median.notna().tolist() == [has_tokens] * 2
