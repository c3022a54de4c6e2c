"""The loss without a block, of a model that lacks it."""

import copy

import pytest
import torch
from torch import nn

from probed import Probed, fixed_batch, probes_of
from stability.model.gpt import loss_sum
from tiny import make_config, run


@torch.no_grad()
@pytest.mark.parametrize("over", [{"norm": "plain"}, {"norm": "pre", "norm_type": "batchnorm"}])
def test_lesion_is_the_loss_of_a_model_with_an_identity_for_a_block(over):
    probed = Probed(["lesion"], **over)
    x, y = fixed_batch(probed)
    model = probed.model.eval()
    intact = float(loss_sum(model(x), y) / y.numel())
    assert probed.values[2, "head", "intact"] == pytest.approx(intact)
    for layer in range(2):
        hurt = copy.deepcopy(model)
        hurt.blocks[layer] = nn.Identity()
        rise = float(loss_sum(hurt(x), y) / y.numel()) - intact
        assert probed.values[layer, "block", "rise"] == pytest.approx(rise, abs=1e-6)


def test_the_intact_loss_is_the_validation_loss(tmp_path):
    ran = run(make_config({"record.probes": ["lesion"], "train.eval_every": 1}), tmp_path / "run")
    rows = probes_of(ran)
    intact = rows[rows.item == "intact"].value.tolist()
    assert intact == pytest.approx(ran.steps.val_loss.tolist(), rel=1e-6)
