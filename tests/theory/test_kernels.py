"""Closed forms of covariance maps against quadrature, and against autograd through the norms."""

import inspect
import math

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from scipy.integrate import quad
from scipy.special import expit, ndtr

from stability.config.knobs import ACTIVATIONS
from stability.parts import norms
from stability.theory import kernels

POINTS, WEIGHTS = hermegauss(150)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def phi(x):
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


FUNCTIONS = {
    "identity": (lambda x: x, np.ones_like),
    "gelu": (lambda x: x * ndtr(x), lambda x: ndtr(x) + x * phi(x)),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "sigmoid": (expit, lambda x: expit(x) * expit(-x)),
    "silu": (lambda x: x * expit(x), lambda x: expit(x) * (1 + x * expit(-x))),
}


def by_quadrature(f, a, b, rho):
    """E[f(u) f(v)] for Gaussian u, v of variances a, b and correlation rho."""
    u = math.sqrt(a) * POINTS[:, None]
    v = math.sqrt(b) * (rho * POINTS[:, None] + math.sqrt(1 - rho**2) * POINTS)
    return float(np.einsum("i,j,ij", WEIGHTS, WEIGHTS, f(u) * f(v)))


def matrix(a, b, rho):
    c = rho * math.sqrt(a * b)
    return np.array([[a, c], [c, b]])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("a", "b", "rho"), [(1, 1, 0.5), (0.3, 1.2, -0.4), (2, 0.5, 0.9), (1e-3, 1e-3, 0.2), (4, 4, 0)]
)
def test_an_activation_maps_covariance_as_quadrature_says(name, a, b, rho):
    for found, f in zip(getattr(kernels, name)(matrix(a, b, rho)), FUNCTIONS[name], strict=True):
        wanted = by_quadrature(f, a, b, rho)
        assert found[0, 1] == pytest.approx(wanted, rel=5e-5, abs=1e-9)
        assert found[0, 0] == pytest.approx(by_quadrature(f, a, a, 1.0), rel=5e-5)
        assert np.array_equal(found, found.T)


def test_tanh_gelu_is_the_gelu_within_what_its_docstring_says():
    def f(x):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    x = np.linspace(-20, 20, 100_001)
    assert np.abs(f(x) - x * ndtr(x)).max() < 5e-4
    for variance in (0.1, 1, 4, 25):
        wanted = by_quadrature(f, variance, variance, 1.0)
        assert kernels.gelu_tanh(np.array([[variance]]))[0] == pytest.approx(wanted, rel=2e-4)


def test_a_token_without_variance_correlates_with_no_other():
    a, b, rho = kernels.correlation(np.diag([0.0, 4.0, 9.0]))
    assert np.array_equal(rho, np.eye(3))
    assert a.ravel().tolist() == b.ravel().tolist() == [0, 4, 9]
    assert (a.shape, b.shape) == ((3, 1), (1, 3))


def test_rounding_never_correlates_beyond_1():
    C = np.array([[1.0, 1 + 1e-9, -1 - 1e-9], [1 + 1e-9, 1.0, 0], [-1 - 1e-9, 0, 1.0]])
    assert kernels.correlation(C)[2].tolist() == [[1, 1, -1], [1, 1, 0], [-1, 0, 1]]


def test_relu_is_half_of_everything():
    F, D = kernels.relu(matrix(3, 3, 0.25))
    assert F[0, 0] == pytest.approx(3 / 2)
    assert D[0, 0] == pytest.approx(1 / 2)
    angle = math.acos(0.25)
    assert D[0, 1] == pytest.approx((math.pi - angle) / (2 * math.pi))
    wanted = 3 * (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / (2 * math.pi)
    assert F[0, 1] == pytest.approx(wanted)


def test_gelu_at_unit_variance_keeps_0_4252():
    assert kernels.gelu(np.eye(2))[0][0, 0] == pytest.approx(0.4252, abs=5e-5)


def test_gelu_of_huge_variance_is_a_relu():
    C = 1e20 * matrix(1, 2, 0.7)
    for gelu, relu in zip(kernels.gelu(C), kernels.relu(C), strict=True):
        assert gelu == pytest.approx(relu, rel=1e-6)


@pytest.mark.parametrize("name", ["gelu", "tanh", "silu", "relu"])
def test_the_gradients_map_is_the_slope_of_the_covariances_map(name):
    kernel, step = getattr(kernels, name), 1e-5
    F_up, F_down = (kernel(matrix(1, 1.5, 0.3 + s))[0][0, 1] for s in (step, -step))
    slope = (F_up - F_down) / (2 * step * math.sqrt(1.5))
    assert kernel(matrix(1, 1.5, 0.3))[1][0, 1] == pytest.approx(slope, rel=1e-5)


def test_every_activation_and_every_norm_has_its_map():
    for name in ACTIVATIONS:
        assert callable(getattr(kernels, "silu" if name == "swiglu" else name))
    for name, cls in inspect.getmembers(norms, inspect.isclass):
        if issubclass(cls, norms.Affine) and cls is not norms.Affine:
            assert hasattr(kernels, name)


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
    K_theory, adjoint = getattr(kernels, name)(width, eps)(C)
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


@pytest.mark.parametrize(("name", "kept"), [("LayerNorm", 1 - 1 / 8), ("RMSNorm", 1.0)])
def test_a_norm_over_features_is_its_formula_to_the_last_digit(name, kept):
    d, eps, C = 8, 0.5, matrix(2.0, 3.0, 0.4)
    K, adjoint = getattr(kernels, name)(d, eps)(C)
    sigma = np.sqrt(kept * np.diagonal(C) + eps)
    wanted = kept * C / np.outer(sigma, sigma)
    np.testing.assert_allclose(K, wanted, rtol=1e-14)
    k = np.diagonal(wanted)
    lost = (np.add.outer(k, k) - wanted**2) / d
    slope = adjoint(np.ones((2, 2)))
    np.testing.assert_allclose(slope, (kept - lost) / np.outer(sigma, sigma), rtol=1e-14)


@pytest.mark.parametrize(("rank", "eps"), [(3, 0.1), (10, 1e-5), (100, 1e-5), (100, 0.1)])
def test_batchnorm_maps_covariance_as_autograd_says_whatever_the_rank(rank, eps):
    C, G = some_covariance(12, rank, 0) + 0.5, some_covariance(12, 20, 1)
    norm = norms.BatchNorm(200_000, True, eps).double()
    K, back = passed_through(norm, C, G, 200_000, draws=1)
    K_theory, adjoint = kernels.BatchNorm(1, eps)(C)
    assert K_theory == pytest.approx(K, abs=0.03)
    assert np.diagonal(adjoint(G)) == pytest.approx(np.diagonal(back), rel=0.04)
    assert adjoint(G) == pytest.approx(back, abs=0.02 * back.max())


@pytest.mark.parametrize("eps", [0.01, 1.0])
def test_batchnorm_over_two_tokens_is_one_integral(eps):
    """x = sqrt(r) z v with v = (1, -1)/sqrt(2) and z normal; J = v v^T eps / s^3."""
    C, v = np.array([[2.0, 0.3], [0.3, 1.0]]), np.array([1, -1]) / math.sqrt(2)
    r = v @ C @ v

    def mean(f):
        return quad(lambda z: 2 * phi(z) * f(z, r * z * z / 2 + eps), 0, 40, limit=500)[0]

    K, adjoint = kernels.BatchNorm(1, eps)(C)
    vv = np.outer(v, v)
    np.testing.assert_allclose(K, vv * mean(lambda z, s2: r * z * z / s2), rtol=1e-5)
    wanted = vv * (v @ some_covariance(2, 3, 0) @ v) * mean(lambda z, s2: eps**2 / s2**3)
    assert adjoint(some_covariance(2, 3, 0)) == pytest.approx(wanted, rel=1e-4)


def test_batchnorm_of_tokens_that_do_not_differ_is_zero():
    K, adjoint = kernels.BatchNorm(1, 1e-5)(np.ones((3, 3)))
    np.testing.assert_allclose(K, 0, atol=1e-9)
    assert np.isfinite(adjoint(np.eye(3))).all()
