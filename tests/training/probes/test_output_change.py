"""How far noise in the weights moves the output."""

import copy

import numpy as np
import pytest
import torch

from probed import FP64, Probed, fixed_batch, read_by_head
from stability.training.probes import output_change


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_output_change_is_that_of_a_model_with_noise_in_its_matrices(norm):
    probed = Probed(["output_change"], norm=norm)
    x, _ = fixed_batch(probed)
    before, changes = read_by_head(probed.model, x), []
    for seed in range(output_change.DRAWS):
        noisy, generator = copy.deepcopy(probed.model), torch.Generator().manual_seed(seed)
        for (_, sublayer, _), p in noisy.weights().items():
            if p.ndim == 2 and sublayer in ("attn", "mlp"):
                noise = torch.randn(p.shape, generator=generator)
                p.data += 0.01 * float(p.detach().square().mean().sqrt()) * noise
        changes.append(float((read_by_head(noisy, x) - before).square().sum(-1).mean()))
    assert probed.values[2, "head", "change"] == pytest.approx(np.mean(changes), rel=1e-3)


def test_output_change_is_of_second_order(monkeypatch):
    values = []
    for relative in (1e-3, 2e-3):
        monkeypatch.setattr(output_change, "RELATIVE", relative)
        values.append(Probed(["output_change"], FP64).values[2, "head", "change"])
    assert values[1] / values[0] == pytest.approx(4, rel=0.02)
