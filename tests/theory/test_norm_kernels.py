"""Closed forms of what norms do to covariances, against autograd through the norms."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from stability.parts import norms
from stability.theory import norm_kernels
from tiny import classes


def phi(x):
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def matrix(a, b, rho):
    c = rho * math.sqrt(a * b)
    return np.array([[a, c], [c, b]])


def test_every_norm_has_its_kernel():
    assert {cls.__name__ for cls in classes("norm_type")} <= vars(norm_kernels).keys()


def normal(C, features, seed, draws=1):
    """Normal draws of covariance C, as a tensor [draws, tokens, features]."""
    rng = np.random.default_rng(seed)
    half = np.linalg.cholesky(C + 1e-12 * np.eye(len(C)))
    return torch.as_tensor(half @ rng.standard_normal((draws, len(C), features)))


def covariance(x):
    return (x @ x.transpose(1, 2)).mean(0).numpy() / x.shape[-1]


def passed_through(norm, C, G, features, draws):
    """Covariances of a norm's output and of its input's gradient."""
    x = normal(C, features, 0, draws).requires_grad_()
    y = norm(x)
    (g,) = torch.autograd.grad(y, x, normal(G, features, 1, draws))
    return covariance(y.detach()), covariance(g)


def some_covariance(tokens, rank, seed):
    X = np.random.default_rng(seed).standard_normal((tokens, rank))
    return X @ X.T / rank


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_a_norm_over_features_maps_covariance_as_autograd_says(name, eps):
    width, C, G = 32, some_covariance(4, 6, 0) + 0.3, some_covariance(4, 6, 1)
    norm = getattr(norms, name)(width, True, eps).double()
    K, back = passed_through(norm, C, G, width, draws=4000)
    K_theory, adjoint = getattr(norm_kernels, name)(width, eps)(C)
    # What is left out is of order 1/d: sigma's own fluctuation.
    assert K_theory == pytest.approx(K, abs=2 / width)
    assert adjoint(G) == pytest.approx(back, abs=4 / width * back.max())


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_the_share_that_a_norm_takes_off_the_gradient_is_exact(name):
    """Given xhat, an isotropic gradient keeps 1 - 2/d (LayerNorm) or 1 - 1/d of its square."""
    width, cls = 16, getattr(norms, name)
    x = normal(np.eye(3), width, 0)
    norm = cls(width, True, 0.0).double()
    J = torch.autograd.functional.jacobian(lambda x: norm(x[None, None])[0, 0], x[0, 0])
    scale = x[0, 0] - x[0, 0].mean() if name == "LayerNorm" else x[0, 0]
    kept = float((J**2).sum() * scale.square().mean() / width)
    assert kept == pytest.approx(1 - (2 if name == "LayerNorm" else 1) / width)


@pytest.mark.parametrize(("rank", "eps"), [(3, 0.1), (10, 1e-5), (100, 1e-5), (100, 0.1)])
def test_batchnorm_maps_covariance_as_autograd_says_whatever_the_rank(rank, eps):
    C, G = some_covariance(12, rank, 0) + 0.5, some_covariance(12, 20, 1)
    norm = norms.BatchNorm(200_000, True, eps).double()
    K, back = passed_through(norm, C, G, 200_000, draws=1)
    K_theory, adjoint = norm_kernels.BatchNorm(1, eps)(C)
    assert K_theory == pytest.approx(K, abs=0.03)
    assert np.diagonal(adjoint(G)) == pytest.approx(np.diagonal(back), rel=0.04)
    assert adjoint(G) == pytest.approx(back, abs=0.02 * back.max())


@pytest.mark.parametrize(("name", "kept"), [("LayerNorm", 1 - 1 / 8), ("RMSNorm", 1.0)])
def test_a_norm_over_features_is_its_formula_to_the_last_digit(name, kept):
    d, eps, C = 8, 0.5, matrix(2.0, 3.0, 0.4)
    K, adjoint = getattr(norm_kernels, name)(d, eps)(C)
    sigma = np.sqrt(kept * np.diagonal(C) + eps)
    wanted = kept * C / np.outer(sigma, sigma)
    np.testing.assert_allclose(K, wanted, rtol=1e-14)
    k = np.diagonal(wanted)
    lost = (np.add.outer(k, k) - wanted**2) / d
    slope = adjoint(np.ones((2, 2)))
    np.testing.assert_allclose(slope, (kept - lost) / np.outer(sigma, sigma), rtol=1e-14)


@pytest.mark.parametrize("eps", [0.01, 1.0])
def test_batchnorm_over_two_tokens_is_one_integral(eps):
    """x = sqrt(r) z v with v = (1, -1)/sqrt(2) and z normal; J = v v^T eps / s^3."""
    C, v = np.array([[2.0, 0.3], [0.3, 1.0]]), np.array([1, -1]) / math.sqrt(2)
    r = v @ C @ v

    def mean(f):
        return quad(lambda z: 2 * phi(z) * f(z, r * z * z / 2 + eps), 0, 40, limit=500)[0]

    K, adjoint = norm_kernels.BatchNorm(1, eps)(C)
    vv = np.outer(v, v)
    np.testing.assert_allclose(K, vv * mean(lambda z, s2: r * z * z / s2), rtol=1e-5)
    wanted = vv * (v @ some_covariance(2, 3, 0) @ v) * mean(lambda z, s2: eps**2 / s2**3)
    assert adjoint(some_covariance(2, 3, 0)) == pytest.approx(wanted, rel=1e-4)


def test_batchnorm_of_tokens_that_do_not_differ_is_zero():
    K, adjoint = norm_kernels.BatchNorm(1, 1e-5)(np.ones((3, 3)))
    np.testing.assert_allclose(K, 0, atol=1e-9)
    assert np.isfinite(adjoint(np.eye(3))).all()
