"""Covariance maps of activations and norms: what each does to Gaussian features, at infinite width.

An activation maps the covariance C_NN of Gaussian u over N tokens to a pair of N x N matrices,

    F_ij = E[phi(u_i) phi(u_j)]    and    D_ij = E[phi'(u_i) phi'(u_j)],

the second of which multiplies the gradient's covariance on the way back (dF/dC off the diagonal, by
Price's theorem). All are closed forms. A norm maps C_NN to the covariance of its output and to the
map that the gradient's covariance takes back through it.

Functions carry the names of ``model.activation``, classes those of `stability.parts.norms`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Adjoint = Callable[[Matrix], Matrix]
"""Covariance of dLoss/d output -> covariance of dLoss/d input."""


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
    """SiLU(u) = u sigmoid(u), as a mixture of GELUs: the gate of ``swiglu``."""
    return _mixture(C, _gelu, 1)


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) over d features, which average themselves out.

    K_ij = C_ij / sqrt((C_ii + eps)(C_jj + eps)). Its Jacobian (I - xhat xhat^T / d) / sigma gives
    G_ij (1 - (K_ii + K_jj)/d + K_ij^2/d) / (sigma_i sigma_j).

    Args:
        width: features d.
        eps: added to the mean square.
    """

    joint = False
    """Whether tokens of different sequences meet in it."""
    centred = False

    def __init__(self, width: int, eps: float) -> None:
        self.width, self.eps = width, eps

    def __call__(self, C: Matrix) -> tuple[Matrix, Adjoint]:
        kept = 1 - self.centred / self.width
        scale = 1 / np.sqrt(kept * np.diagonal(C) + self.eps)
        K = kept * C * scale[:, None] * scale
        k = np.diagonal(K)
        trace = kept - (k[:, None] + k - K**2) / self.width
        J = trace * scale[:, None] * scale
        return K, lambda G: J * G


class LayerNorm(RMSNorm):
    """(x - mean(x)) / sqrt(var(x) + eps): as RMSNorm, with a share 1/d more lost to the mean."""

    centred = True


class BatchNorm:
    """(x - mean) / sqrt(var + eps) per feature over all N tokens of the batch.

    With H = I - 11^T/N a feature is x ~ N(0, HCH) and K = E[x x^T / s^2], s^2 = x^T x / N + eps.
    Over few independent tokens s fluctuates and K is not HCH / (tr/N + eps): with z^-n written as
    the integral of t^(n-1)/(n-1)! exp(-t z), every average is a closed Gaussian one in the basis
    of eigenvectors of HCH, and one integral remains. Back, the Jacobian
    (H - x x^T / (N s^2)) / s mixes tokens: with alpha = E s^-2, beta_i = E x_i^2 s^-4 / N and
    gamma_ij = E x_i^2 x_j^2 s^-6 / N^2 in that basis,
    G_ij <- (alpha - beta_i - beta_j + 2 gamma_ij) G_ij for i != j, and
    G_ii <- (alpha - 2 beta_i) G_ii + sum_k gamma_ik G_kk.

    Args:
        width: features; not used, each is on its own.
        eps: added to the variance.
    """

    joint = True

    def __init__(self, width: int, eps: float) -> None:
        self.eps = eps

    def __call__(self, C: Matrix) -> tuple[Matrix, Adjoint]:
        N = len(C)
        eigen, U = np.linalg.eigh(_centre(C))
        unit = max(eigen.max(initial=0), 1e-300)
        eigen = np.clip(eigen, 0, None) / unit
        first, alpha, beta, gamma = _inverse_moments(eigen, N * self.eps / unit, N)
        K = (U * first) @ U.T

        def adjoint(G: Matrix) -> Matrix:
            R = U.T @ _centre(G) @ U
            back = (alpha - beta[:, None] - beta + 2 * gamma) * R
            np.fill_diagonal(back, (alpha - 2 * beta) * np.diagonal(R) + gamma @ np.diagonal(R))
            return _centre(U @ back @ U.T / unit)

        return K, adjoint


def _centre(C: Matrix) -> Matrix:
    row: Matrix = C.mean(0)
    centred: Matrix = C - row - row[:, None] + row.mean()
    return centred


def _inverse_moments(eigen: Matrix, eps: float, N: int) -> tuple[Matrix, float, Matrix, Matrix]:
    """E of x_i^2/s^2, 1/s^2, x_i^2/(N s^4), x_i^2 x_j^2/(N^2 s^6) by 200 log-spaced nodes."""
    log_t = np.linspace(np.log(1e-6 / max(eigen.sum(), 1)), np.log(1e9), 200)
    t = np.exp(log_t)
    damp = 1 + 2 * t[:, None] * eigen
    weight = N * t * np.exp(-0.5 * np.log(damp).sum(1) - eps * t) * (log_t[1] - log_t[0])
    part = eigen / damp
    gamma = np.einsum("t,ti,tj->ij", weight * t**2 / 2, part, part, optimize=True)
    np.fill_diagonal(gamma, 3 * np.diagonal(gamma))
    return weight @ part, float(weight.sum()), (weight * t) @ part, gamma
