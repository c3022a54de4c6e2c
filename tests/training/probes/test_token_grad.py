"""The gradient by position, token by token."""

import pytest
import torch

from probed import FP64, Probed, by_layer, gradients
from stability.training.probes import token_grad


def test_token_grad_splits_the_gradient_by_position():
    probed = Probed(["token_grad"], FP64)
    for (layer, sublayer), (_, grad) in gradients(probed).items():
        for t in range(8):
            wanted = float((grad[:, t] ** 2).mean())
            assert probed.values[layer, sublayer, str(t)] == pytest.approx(wanted)
    for (layer, sublayer, name), (x, _, delta, grad) in by_layer(probed).items():
        parts = {"first": [0], "quarter": [1], "rest": range(2, 8)}
        whole = torch.zeros_like(grad)
        for group, positions in parts.items():
            share = sum(delta[b, t].outer(x[b, t]) for b in range(len(x)) for t in positions)
            whole += share
            assert probed.values[layer, sublayer, f"{name}.{group}"] == pytest.approx(
                float(share.norm())
            )
        assert (whole - grad).abs().max() < 1e-12


@pytest.mark.parametrize("time", [2, 3, 64, 65, 1024])
def test_token_groups_hold_every_position_once_and_rows_stay_few(time):
    held = [t for part in token_grad.groups(time).values() for t in range(time)[part]]
    assert held == list(range(time))
    chosen = token_grad.positions(time)
    assert len(set(chosen)) == min(time, 64) and {0, time - 1} <= set(chosen)
