"""Activations on tensors, and their kernels against quadrature."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import expit, ndtr

import by_hand
from stability.model import build
from stability.parts import activation_kernels, activations
from tiny import make_config, options

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
    for found, f in zip(
        getattr(activation_kernels, name)(matrix(a, b, rho)), FUNCTIONS[name], strict=True
    ):
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
        assert activation_kernels.gelu_tanh(np.array([[variance]]))[0] == pytest.approx(
            wanted, rel=2e-4
        )


def test_a_token_without_variance_correlates_with_no_other():
    a, b, rho = activation_kernels.correlation(np.diag([0.0, 4.0, 9.0]))
    assert np.array_equal(rho, np.eye(3))
    assert a.ravel().tolist() == b.ravel().tolist() == [0, 4, 9]
    assert (a.shape, b.shape) == ((3, 1), (1, 3))


def test_rounding_never_correlates_beyond_1():
    C = np.array([[1.0, 1 + 1e-9, -1 - 1e-9], [1 + 1e-9, 1.0, 0], [-1 - 1e-9, 0, 1.0]])
    assert activation_kernels.correlation(C)[2].tolist() == [[1, 1, -1], [1, 1, 0], [-1, 0, 1]]


def test_relu_is_half_of_everything():
    F, D = activation_kernels.relu(matrix(3, 3, 0.25))
    assert F[0, 0] == pytest.approx(3 / 2)
    assert D[0, 0] == pytest.approx(1 / 2)
    angle = math.acos(0.25)
    assert D[0, 1] == pytest.approx((math.pi - angle) / (2 * math.pi))
    wanted = 3 * (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / (2 * math.pi)
    assert F[0, 1] == pytest.approx(wanted)


def test_gelu_at_unit_variance_keeps_0_4252():
    assert activation_kernels.gelu(np.eye(2))[0][0, 0] == pytest.approx(0.4252, abs=5e-5)


def test_gelu_of_huge_variance_is_a_relu():
    C = 1e20 * matrix(1, 2, 0.7)
    for gelu, relu in zip(activation_kernels.gelu(C), activation_kernels.relu(C), strict=True):
        assert gelu == pytest.approx(relu, rel=1e-6)


@pytest.mark.parametrize("name", ["gelu", "tanh", "silu", "relu"])
def test_the_gradients_map_is_the_slope_of_the_covariances_map(name):
    kernel, step = getattr(activation_kernels, name), 1e-5
    F_up, F_down = (kernel(matrix(1, 1.5, 0.3 + s))[0][0, 1] for s in (step, -step))
    slope = (F_up - F_down) / (2 * step * math.sqrt(1.5))
    assert kernel(matrix(1, 1.5, 0.3))[1][0, 1] == pytest.approx(slope, rel=1e-5)


# Against the activation itself ------------------------------------------------------------------


def activation_of(name):
    return build.activation_of(make_config(activation=name))


@pytest.mark.parametrize("name", options("activation"))
def test_an_activation_is_its_formula_in_the_dtype_of_its_input(name):
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    wanted = by_hand.ACTIVATIONS[name](x)
    torch.testing.assert_close(activation_of(name)(x), wanted, rtol=1e-12, atol=1e-14)
    assert activation_of(name)(x.bfloat16()).dtype == torch.bfloat16
    assert activation_of(name).gated is (name in by_hand.GATED)


@pytest.mark.parametrize("name", options("activation"))
def test_its_kernel_is_that_of_the_activation_and_of_its_slope(name):
    """Quadrature of the tensors' own function, whichever it is; 150 points see a kink less well."""
    phi = activation_of(name)
    F, D = phi.kernel(matrix(1.2, 0.7, 0.6))

    def value(u):
        return phi(torch.as_tensor(u)).numpy()

    def slope(u):
        x = torch.as_tensor(u).requires_grad_()
        return torch.autograd.grad(phi(x).sum(), x)[0].numpy()

    within = 0.02 if name == "relu" else 1e-3
    for found, f in ((F, value), (D, slope)):
        assert found[0, 1] == pytest.approx(by_quadrature(f, 1.2, 0.7, 0.6), rel=within)
        assert found[1, 1] == pytest.approx(by_quadrature(f, 0.7, 0.7, 1.0), rel=within)


def test_an_activation_can_be_built_without_torch():
    code = (
        "import sys, numpy; from stability.parts.activations import SwiGLU;"
        "SwiGLU().kernel(numpy.eye(2)); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_activation_without_a_kernel_says_so():
    class Cubed(activations.Activation):
        def __call__(self, x):
            return x**3

    assert not Cubed().has_kernel and activations.GELU().has_kernel
    with pytest.raises(NotImplementedError, match="Cubed has no kernel"):
        Cubed().kernel(np.eye(2))
