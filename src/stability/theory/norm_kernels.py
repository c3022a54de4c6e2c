"""Kernels of norms: what each does to the covariance of Gaussian features, at infinite width.

A norm maps C_NN over N tokens to the covariance K_NN of its output and to the map that the
gradient's covariance takes back through it.

Classes carry the names of `stability.parts.norms`, which imports torch. Any other norm carries its
kernel itself, as the attribute ``kernel`` of its class.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from stability.parts.activation_kernels import Matrix

Adjoint = Callable[[Matrix], Matrix]
"""Covariance of dLoss/d output -> covariance of dLoss/d input."""


class Kernel(Protocol):
    """What the theory asks of a norm's kernel, built as ``cls(width, **rest of the yaml)``."""

    joint: bool
    """Whether its output for a token depends on tokens of other sequences (BatchNorm)."""

    def __call__(self, C: Matrix) -> tuple[Matrix, Adjoint]:
        """The covariance of the output, and the adjoint for gradients."""


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) over d features; mean(x_i^2) = C_ii at infinite width.

    K_ij = C_ij / sqrt((C_ii + eps)(C_jj + eps)). Its Jacobian (I - xhat xhat^T / d) / sigma gives
    G_ij (1 - (K_ii + K_jj)/d + K_ij^2/d) / (sigma_i sigma_j).

    Args:
        width: features d.
        eps: added to the mean square.
    """

    joint = False
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
