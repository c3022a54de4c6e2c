"""How far training has moved the output."""

import pytest

from probed import Probed, fixed_batch, read_by_head
from stability.model import build
from stability.training import probes
from stability.training.passes import Batch


def test_model_update_is_the_distance_from_the_start_drawn_from_the_seed():
    probed = Probed(["model_update"])
    x, _ = fixed_batch(probed)
    start = build.model_of(probed.config, probed.built.model.embed.wte.shape[0])
    moved = read_by_head(probed.model, x) - read_by_head(start, x)
    wanted = float(moved.square().sum(-1).mean().sqrt())
    assert wanted > 0.1
    assert probed.values[2, "head", "change"] == pytest.approx(wanted, rel=1e-5)
    fresh = probes.Prober(build.build(probed.config), "run").take(Batch(0, probed.x, probed.y))
    assert fresh["value"] == [0.0]
