"""Sublayers as maps of covariances: C of the output, and the adjoint for gradients.

Gains are fan_in * std^2 of a weight: the variance of its output over that of its input.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stability.parts.activation_kernels import Matrix
from stability.parts.activations import Activation
from stability.theory.covariance import Cov, gaussian, scaled, summed
from stability.theory.limits import decomposing, require_shape

ComplexMatrix = NDArray[np.complex128] | Matrix
"""Attention matrices, real, or complex under rotary positions."""


def linear(gain: float, x: Cov) -> Cov:
    """W x with gain = fan_in * std^2, forward and, W being square, backward."""
    out = x.then(gain * x.C, lambda G: gain * G)
    if x.deviations is not None:
        out.deviations = scaled(gain, x.deviations)  # of x, passed on; the draw of W adds
        out.deviations = summed(out.deviations, gaussian(out))
    return out


def mlp(activation: Activation, gains: Mapping[str, float], x: Cov) -> Cov:
    """W2 phi(W1 x), or with a gated activation W2 (phi(Wg x) * W1 x).

    gains: role -> fan_in * std^2. Backward gains are fan_out * std^2; fan_in and fan_out of W1 and
    W2 cancel in their product.
    """
    down = gains["mlp_out"]
    read, slopes = hidden(activation, gains, x.C)
    through = down * sum(gains[name] * slope for name, slope in slopes.items())
    return x.then(down * read, lambda G: through * G)


def hidden(
    activation: Activation, gains: Mapping[str, float], C: Matrix
) -> tuple[Matrix, dict[str, Matrix]]:
    """C of the input of W2, and per weight before it (mlp_in, mlp_gate) a slope, all [N, N].

    The slope is the covariance of the derivative of that input by the weight's output. The
    gradient of such an output is slope o G times fan_out * std^2 of W2.
    """
    up = gains["mlp_in"]
    if activation.gated:
        F, D = _kernel(activation, gains["mlp_gate"] * C)
        return up * F * C, {"mlp_in": F, "mlp_gate": up * D * C}
    F, D = _kernel(activation, up * C)
    return F, {"mlp_in": D}


def _kernel(activation: Activation, C: Matrix) -> tuple[Matrix, Matrix]:
    F, D = activation.kernel(C)
    require_shape(C, F, D)
    return F, D


@dataclass(frozen=True)
class Attention:
    """Multi-head self-attention as a map of covariances, averaged over sampled heads.

    One head's scores are q k^T / sqrt(K) with q = sqrt(g_q) R z: R a root of C, z standard normal
    of the head's own width, so that only the number of heads is taken as infinite. Heads come in
    pairs of opposite scores, which removes the noise of first order.

    With A = softmax(scores) and m = A C, forward g_v g_o E[A C A^T]. Back, the value path is
    g_v g_o E[A^T G A]. The gradient of the scores is D = A o (S - rowsum(A o S)) with S normal of
    covariance g_v g_o G_ij C_ab; averaged over S in closed form,

        E[D C D^T] = G o (A C2 A^T - m2 A^T - A m2^T + m A^T o m A^T),  C2 = C o C, m2 = m o m,
        E[D^T C D] = C o A^T W A - A^T (m o W A) - (m o W A)^T A + A^T (W o m A^T) A,  W = C o G,

    each times g_q g_k g_v g_o: what reaches q and k. With rotary positions the A that carry the
    gradient to k and q are multiplied by exp(-1j * rate * (i - j)); each sampled head uses one
    rate.

    Args:
        gains: fan_in * std^2 of q, k, v and attn_out.
        head_width: features of one head.
        mask: whether token j is seen from token i.
        offset: i - j of rotary positions, or None.
        samples: attention matrices to sample.
    """

    gains: Mapping[str, float]
    head_width: int
    mask: NDArray[np.bool_]
    offset: Matrix | None
    samples: int

    def __call__(self, x: Cov) -> Cov:
        read, back = self.inside(x.C, x.tape.rng)

        def adjoint(G: Matrix) -> Matrix:
            return _bounded(np.sum([self.gains[name] * to for name, to in back(G).items()], 0))

        return x.then(self.gains["attn_out"] * read, adjoint)

    def inside(
        self, C: Matrix, rng: np.random.Generator
    ) -> tuple[Matrix, Callable[[Matrix], dict[str, Matrix]]]:
        """C of the input of W_O, and a map: G of the branch -> G of the outputs of q, k and v."""
        A_SNN = self._rows(C, rng)
        B_SNN = self._rotated(A_SNN)
        m_SNN = A_SNN @ C
        mA_SNN = m_SNN @ A_SNN.swapaxes(1, 2)
        to_q = _to_queries(C, B_SNN, m_SNN, mA_SNN)
        q, k, v, out = (self.gains[name] for name in ("q", "k", "v", "attn_out"))

        def back(G: Matrix) -> dict[str, Matrix]:
            return {
                "q": out * v * k * to_q * G,
                "k": out * v * q * _to_keys(C, G, B_SNN, m_SNN, mA_SNN),
                "v": out * _sandwiched(A_SNN, G @ A_SNN),
            }

        return v * mA_SNN.mean(0), back

    def saturates(self, C: Matrix) -> bool:
        """Whether softmax picks single tokens: the scores' std is above sqrt(2 ln T).

        There a sum of T exponentials is that of its largest term (the freezing of the random
        energy model, Derrida 1981). The gradient through the scores then comes from rare near-ties
        and a few heads and seeds do not estimate its mean.
        """
        std = np.sqrt(self.gains["q"] * self.gains["k"]) * np.diagonal(C).mean()
        seen = self.mask.sum(1).max()
        return bool(std > np.sqrt(2 * np.log(max(seen, 2))))

    def _rows(self, C: Matrix, rng: np.random.Generator) -> Matrix:
        """Sampled attention matrices, [S, N, N]."""
        N, pairs = len(C), max(self.samples // 2, 1)
        half = root(C)
        q, k = half @ rng.standard_normal((2, pairs, N, self.head_width))
        if self.offset is not None:
            q, k = (_rotate(t, self.offset[:, 0] - self.offset[0, 0]) for t in (q, k))
        size = np.sqrt(self.gains["q"] * self.gains["k"] / self.head_width)
        scores = size * (q @ k.swapaxes(1, 2))
        scores = np.concatenate([scores, -scores])
        scores = np.where(self.mask, scores, -np.inf)
        A: Matrix = np.exp(scores - scores.max(-1, keepdims=True))
        A /= A.sum(-1, keepdims=True)
        return A

    def _rotated(self, A_SNN: Matrix) -> ComplexMatrix:
        """A_SNN times exp(-1j rate (i - j)); A itself without rotary positions."""
        if self.offset is None:
            return A_SNN
        rates = _rates(self.head_width)
        shown = rates[np.arange(len(A_SNN)) * len(rates) // len(A_SNN)]
        phase: ComplexMatrix = np.exp(-1j * shown[:, None, None] * self.offset)
        return A_SNN * phase


def _sandwiched(B_SNN: ComplexMatrix, X_SNN: ComplexMatrix) -> Matrix:
    """Mean over samples of B^H X, its real and symmetric part."""
    S, N = B_SNN.shape[:2]
    mean = np.real(B_SNN.reshape(S * N, N).conj().T @ X_SNN.reshape(S * N, N)) / S
    half: Matrix = (mean + mean.T) / 2
    return half


def _to_queries(C: Matrix, B_SNN: ComplexMatrix, m_SNN: Matrix, mA_SNN: Matrix) -> Matrix:
    """E[D C D^T] / G; B is A, or A rotated."""
    back = B_SNN.swapaxes(1, 2).conj()
    n_SNN = B_SNN @ C if np.iscomplexobj(B_SNN) else m_SNN
    inner = B_SNN @ (C * C) - 2 * m_SNN * n_SNN
    total = np.real((inner @ back + mA_SNN * (n_SNN @ back)).mean(0))
    terms = (np.abs(B_SNN).mean(0) @ np.diagonal(C)) ** 2
    return _beyond_rounding((total + total.T) / 2, terms)


def _to_keys(C: Matrix, G: Matrix, B_SNN: ComplexMatrix, m_SNN: Matrix, mA_SNN: Matrix) -> Matrix:
    """E[D^T C D] for the G of the branch's output."""
    W = C * G
    WB_SNN = W @ B_SNN
    rest = (W * mA_SNN) @ B_SNN - 2 * m_SNN * WB_SNN
    first = C * _sandwiched(B_SNN, WB_SNN)
    return _beyond_rounding(first + _sandwiched(B_SNN, rest), np.diagonal(first))


def _beyond_rounding(total: Matrix, terms: Matrix) -> Matrix:
    """`total`, set to 0 where |total| <= 1e-12 sqrt(terms_i terms_j).

    There it is the rounding error of cancelling terms under saturated attention.
    """
    size = np.sqrt(np.abs(terms))
    kept: Matrix = np.where(np.abs(total) > 1e-12 * size[:, None] * size, total, 0)
    return kept


def _bounded(G: Matrix) -> Matrix:
    """G clipped to variances >= 0 and |correlations| <= 1, which rounding may violate."""
    var = np.maximum(np.diagonal(G), 0)
    most = np.sqrt(var[:, None]) * np.sqrt(var)
    return np.clip(G, -most, most)


def root(C: Matrix) -> Matrix:
    """R with R R^T = C, whatever its rank."""
    std = np.sqrt(np.diagonal(C))
    std = np.where(std > 0, std, 1)
    correlation = C / std[:, None] / std
    with decomposing(correlation):
        eigen, U = np.linalg.eigh(correlation)
    half: Matrix = std[:, None] * U * np.sqrt(np.maximum(eigen, 0))
    return half


def _rates(width: int) -> Matrix:
    """Radians per position of each pair of a head's features. Source: arXiv:2104.09864."""
    rates: Matrix = 10_000 ** (-np.arange(0, width, 2) / width)
    return rates


def _rotate(x: Matrix, position: Matrix) -> Matrix:
    angle = position[:, None] * _rates(x.shape[-1])
    a, b = np.split(x, 2, axis=-1)
    c, s = np.cos(angle), np.sin(angle)
    return np.concatenate((a * c - b * s, a * s + b * c), axis=-1)
