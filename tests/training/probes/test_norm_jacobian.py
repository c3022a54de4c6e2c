"""A norm's Jacobian in closed form against the full matrix."""

import numpy as np
import pytest
import torch
from torch.autograd.functional import jacobian as full_jacobian

from stability.model.gpt import draw
from stability.parts.norms import BatchNorm, LayerNorm, RMSNorm
from stability.training.probes import norm_jacobian


def moved(norm):
    with torch.no_grad():
        norm.weight.add_(0.3 * draw(0, "g", norm.weight.shape))
        norm.bias.add_(draw(0, "b", norm.bias.shape))
    return norm


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_closed_form_of_a_tokens_jacobian_is_the_full_matrix(kind):
    d, eps = 12, 1e-2
    norm = moved(kind(d, True, eps))
    x = 0.3 * draw(0, "x", torch.Size((1, 1, d))) + 0.2
    centred = x[0, 0] - (x.mean() if kind is LayerNorm else 0)
    sigma = (centred.square().mean() + eps).sqrt()
    xhat, ones = centred / sigma, torch.ones(d, dtype=torch.float64)
    mean = torch.outer(ones, ones) / d if kind is LayerNorm else 0
    closed = (torch.eye(d, dtype=torch.float64) - mean - torch.outer(xhat, xhat) / d) / sigma
    plain = kind(d, True, eps).double()
    assert (full_jacobian(plain, x).reshape(d, d) - closed).abs().max() < 1e-12
    for j in range(d):
        column = norm_jacobian.closed_form(
            norm, x, torch.eye(d, dtype=torch.float64)[j][None, None]
        )
        assert (column[0, 0] - closed[:, j]).abs().max() < 1e-12
    items = norm_jacobian.measure(norm, x)
    assert items["error"] < 1e-12
    assert items["inverse_sigma"] == pytest.approx(float(1 / sigma))
    wanted = float(torch.linalg.matrix_norm(closed, 2))
    assert items["spectral"] == pytest.approx(wanted, rel=1e-6)
    assert wanted == pytest.approx(float(1 / sigma), rel=1e-9)


def test_closed_form_of_batchnorm_is_the_full_matrix():
    norm, x = moved(BatchNorm(3, True, 1e-5)), draw(0, "x", torch.Size((2, 5, 3)))
    full = full_jacobian(BatchNorm(3, True, 1e-5).double(), x).reshape(30, 30)
    v = draw(0, "v", x.shape)
    assert (
        norm_jacobian.closed_form(norm, x, v).flatten() - full @ v.flatten()
    ).abs().max() < 1e-12
    feature = full.reshape(10, 3, 10, 3)
    wanted = np.mean([float(torch.linalg.matrix_norm(feature[:, d, :, d], 2)) for d in range(3)])
    assert norm_jacobian.measure(norm, x)["spectral"] == pytest.approx(wanted, rel=1e-6)


def test_a_wrong_closed_form_shows(monkeypatch):
    monkeypatch.setattr(RMSNorm, "centred", True)
    norm, x = RMSNorm(8, True, 1e-5), draw(0, "x", torch.Size((2, 3, 8)))
    assert norm_jacobian.measure(norm, x)["error"] > 1e-3
