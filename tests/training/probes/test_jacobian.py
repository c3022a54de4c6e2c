"""Spectral norms of Jacobians against full matrices."""

import math

import pytest
import torch
from torch import nn
from torch.autograd.functional import jacobian as full_jacobian
from torch.nn.attention import SDPBackend, sdpa_kernel

from probed import FP64, Probed
from stability.model.gpt import draw
from stability.training.probes import _spectral, jacobian
from tiny import options


def norm2(function, x):
    with sdpa_kernel(SDPBackend.MATH):
        full = full_jacobian(function, x.detach())
    return float(torch.linalg.matrix_norm(full.reshape(-1, x.numel()), 2))


def times(matrix):
    """A function whose Jacobian is the matrix, at a point."""
    x = torch.zeros(matrix.shape[1], dtype=matrix.dtype, requires_grad=True)
    return _spectral.spectral_norm(matrix @ x, x)


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e18])
def test_the_spectral_norm_is_that_of_the_full_matrix_at_any_scale(scale):
    matrix = (draw(0, "m", torch.Size((300, 200))) * scale).float()
    assert times(matrix) == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=2e-3)


def test_the_spectral_norm_of_odd_matrices():
    assert times(torch.zeros(5, 7)) == 0
    assert times(torch.outer(torch.ones(6), torch.ones(4))) == pytest.approx(math.sqrt(24))
    assert times(torch.eye(50)) == pytest.approx(1)
    assert times(torch.full((1, 1), -3.0)) == pytest.approx(3)
    assert math.isnan(times(torch.full((3, 3), math.nan)))
    assert math.isnan(times(torch.full((3, 3), math.inf)))


@pytest.mark.parametrize("norm_type", options("norm_type"))
@pytest.mark.parametrize("norm", options("norm"))
def test_jacobian_of_each_sublayer_branch_and_tail(norm, norm_type):
    changes = {"train.batch_size": 2, "model.context": 4, "model.width": 8, **FP64}
    probed = Probed(["jacobian"], changes, norm=norm, norm_type=norm_type)
    streams = list(probed.streams().values())
    subs = [s for b in probed.model.blocks for s in b.sublayers().values()]
    places = [k for k in probed.streams() if k[1] != "embed"]
    for place, sub, x in zip(places, subs, streams, strict=False):
        assert probed.values[*place, "sublayer"] == pytest.approx(norm2(sub, x), rel=5e-3)

    def rest(first):
        return lambda x: nn.Sequential(*subs[first:])(x)

    for layer in range(2):
        wanted = norm2(rest(2 * layer), streams[2 * layer])
        assert probed.values[layer, "block", "tail"] == pytest.approx(wanted, rel=5e-3)


CHAINS = {
    "pre": lambda s, x: [s.norm, s.f],
    "post": lambda s, x: [s.f, lambda b: s.norm(x + b)],
    "deepnorm": lambda s, x: [s.f, lambda b: s.norm(s.placement.alpha * x + b)],
    "peri": lambda s, x: [s.norm, s.f, s.norm.out],
    "none": lambda s, x: [s.f],
    "plain": lambda s, x: [s.f],
}


@pytest.mark.parametrize("norm", CHAINS)
def test_the_branch_is_the_product_of_the_jacobians_along_it(norm):
    changes = {"train.batch_size": 2, "model.context": 4, "model.width": 8, **FP64}
    probed = Probed(["jacobian"], changes, norm=norm)
    streams = list(probed.streams().values())
    for i, place in enumerate(k for k in probed.streams() if k[1] != "embed"):
        sub = probed.model.blocks[place[0]].sublayers()[place[1]]
        x, product = streams[i].detach(), torch.eye(streams[i].numel(), dtype=torch.float64)
        h = x
        with sdpa_kernel(SDPBackend.MATH):
            for step in CHAINS[norm](sub, x):
                full = full_jacobian(step, h).reshape(h.numel(), -1)
                product, h = full @ product, step(h).detach()
        wanted = float(torch.linalg.matrix_norm(product, 2))
        assert probed.values[*place, "branch"] == pytest.approx(wanted, rel=5e-3)


def test_tails_of_a_deep_net_are_a_stated_few():
    probed = Probed(["jacobian"], {"model.width": 4, "model.heads": 1}, depth=20)
    layers = [layer for layer, _, item in probed.values if item == "tail"]
    assert len(layers) == jacobian.TAILS and layers[0] == 0 and layers[-1] == 19
