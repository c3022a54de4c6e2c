"""Kernels of activations: what each does to the covariance of Gaussian features.

An activation maps the covariance C_NN of Gaussian u over N tokens to a pair of N x N matrices,

    F_ij = E[phi(u_i) phi(u_j)]    and    D_ij = E[phi'(u_i) phi'(u_j)],

the second of which multiplies the gradient's covariance on the way back (dF/dC off the diagonal, by
Price's theorem). All are closed forms. `stability.parts.activations` says which one belongs to
which activation.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def correlation(C: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """Variances a_N1 and b_1N of the two tokens, and their correlation, exactly 1 for i = j."""
    var = np.diagonal(C)
    std = np.sqrt(var)
    rho = C / np.where(std > 0, std, 1)[:, None] / np.where(std > 0, std, 1)
    rho = np.clip(rho, -1, 1)
    np.fill_diagonal(rho, 1)
    return var[:, None], var[None, :], rho


def _erf(a: Matrix, b: Matrix, rho: Matrix) -> tuple[Matrix, Matrix]:
    """F and D of Phi, the normal distribution function. Source: Williams 1997 (arc-sine kernel)."""
    c, delta = _delta(a, b, rho)
    # arcsin(c / sqrt((1 + a)(1 + b))), in the form that is exact where the ratio is near 1.
    angle = np.arctan2(c, np.sqrt(delta))
    return 0.25 + angle / (2 * np.pi), 1 / (2 * np.pi * np.sqrt(delta))


def _delta(a: Matrix, b: Matrix, rho: Matrix) -> tuple[Matrix, Matrix]:
    """Covariance c, and (1 + a)(1 + b) - c^2 without the cancellation at large variances."""
    return rho * np.sqrt(a) * np.sqrt(b), 1 + a + b + a * b * (1 - rho) * (1 + rho)


def _gelu(a: Matrix, b: Matrix, rho: Matrix) -> tuple[Matrix, Matrix]:
    """F and D of u Phi(u), by Stein's lemma. Source: the GELU kernel of arXiv:2002.08517."""
    c, delta = _delta(a, b, rho)
    root = np.sqrt(delta)
    P, _ = _erf(a, b, rho)
    # ab + c^2 k with k = 1/(1+a) + 1/(1+b) - 1, in the form that does not cancel.
    inverse = 1 / (1 + a) + 1 / (1 + b)
    rest = a * b * (1 - rho) * (1 + rho) + c**2 * inverse
    F = c * P + rest / (2 * np.pi * root)
    D = P + c / (2 * np.pi * root) * (1 + 2 * (inverse - 1) + rest / delta)
    return F, D


def identity(C: Matrix) -> tuple[Matrix, Matrix]:
    """F = C, D = 1."""
    return C, np.ones_like(C)


def relu(C: Matrix) -> tuple[Matrix, Matrix]:
    """Arc-cosine kernels of order 1 and 0. Source: Cho and Saul 2009."""
    a, b, rho = correlation(C)
    obtuse = np.pi - np.arccos(rho)
    scale = np.sqrt(a) * np.sqrt(b) / (2 * np.pi)
    return scale * (np.sqrt((1 - rho) * (1 + rho)) + rho * obtuse), obtuse / (2 * np.pi)


def gelu(C: Matrix) -> tuple[Matrix, Matrix]:
    """GELU(u) = u Phi(u). E phi^2 = 0.4252 at unit variance."""
    return _gelu(*correlation(C))


def gelu_tanh(C: Matrix) -> tuple[Matrix, Matrix]:
    """Those of `gelu`: the tanh form is within 5e-4 of it, its E phi^2 within 0.02%."""
    return gelu(C)


LOGISTIC = np.array(
    [
        (0.045025004779, 1.120788666286),
        (0.295132586789, 0.802959167219),
        (0.427664814854, 0.576324788294),
        (0.208225784673, 0.411717759092),
        (0.023951808905, 0.292362965184),
    ]
)
"""Weights w and scales s such that 1 / (1 + exp(-x)) = sum w Phi(s x) within 7e-7.

The logistic law is a scale mixture of normals (Stefanski 1991); five terms, least squares.
"""


def _mixture(
    C: Matrix, kernel: Callable[[Matrix, Matrix, Matrix], tuple[Matrix, Matrix]], power: int
) -> tuple[Matrix, Matrix]:
    """F and D of sum_k w_k s_k^-power psi(s_k u), for psi with the given kernel."""
    a, b, rho = correlation(C)
    F, D = np.zeros_like(C), np.zeros_like(C)
    for k, (w, s) in enumerate(LOGISTIC):
        for v, t in LOGISTIC[: k + 1]:
            f, d = kernel(s**2 * a, t**2 * b, rho)
            f, d = w * v * (s * t) ** -power * f, w * v * (s * t) ** (1 - power) * d
            F += f if s == t else f + f.T
            D += d if s == t else d + d.T
    return F, D


def sigmoid(C: Matrix) -> tuple[Matrix, Matrix]:
    """1 / (1 + exp(-u)), as a mixture of Phi(s u); its output has a mean of 1/2."""
    return _mixture(C, _erf, 0)


def tanh(C: Matrix) -> tuple[Matrix, Matrix]:
    """2 sigmoid(2u) - 1: covariance 4 F - 1 of the sigmoid at 4C."""
    F, D = sigmoid(4 * C)
    return 4 * F - 1, 16 * D


def silu(C: Matrix) -> tuple[Matrix, Matrix]:
    """SiLU(u) = u sigmoid(u), as a mixture of GELUs: the gate of SwiGLU."""
    return _mixture(C, _gelu, 1)
