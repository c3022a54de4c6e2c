"""Covariances that run through a placement's equation, and sublayers as maps of them.

A `Cov` stands for the residual stream x_ND of N tokens. Features are independent, so all that is
left of x at infinite width is C_ij = E[x_i x_j], and of dLoss/dx the same, G_ij. It supports what
equations use: ``+`` of independent terms adds, ``a *`` multiplies by a^2, norms and sublayers are
maps of C. Every operation leaves its adjoint on a tape; `Tape.reverse` plays them backwards, which
turns the G of the output into the G of everything before it.
"""

from collections.abc import Callable

import numpy as np

from stability import kernels
from stability.kernels import Adjoint, Matrix


class NoTheory(Exception):
    """The recursion does not cover this config; the message says what."""


class Tape:
    """The operations done, and one stream of random numbers for those that sample."""

    def __init__(self, seed: int = 0) -> None:
        self.steps: list[Callable[[], None]] = []
        self.rng = np.random.Generator(np.random.Philox(key=seed))

    def reverse(self) -> None:
        for step in reversed(self.steps):
            step()


class Cov:
    """Covariance of an x_ND, and after `Tape.reverse` of its gradient.

    Args:
        tape: where its operations are written.
        C: E[x_i x_j] per feature.
        kept: c_i with x_i = c_i x_0i + what is independent of the embedding x_0i.
        terms: what it is a sum of: two operands that share one are not independent.

    Attributes:
        G: covariance of dLoss/dx.
        stem: the norm's output that goes on in it without passing a branch.
        share: the share of the variance of each token that is the stem's.
        held: of a norm's output: a later norm has it as its stem.
        along: E(delta_i x_i)^2 / d where it is known; were delta isotropic, G_ii C_ii.
    """

    def __init__(
        self,
        tape: Tape,
        C: Matrix,
        kept: Matrix | None = None,
        terms: frozenset[object] | None = None,
    ) -> None:
        self.tape, self.C = tape, C
        self.kept = np.zeros(len(C)) if kept is None else kept
        self.terms = frozenset([object()]) if terms is None else terms
        self.G = np.zeros_like(C)
        self.stem: Cov | None = None
        self.share, self.along = np.zeros(len(C)), np.zeros(0)
        self.held = False

    def __add__(self, other: "Cov") -> "Cov":
        if self.terms & other.terms:
            raise NoTheory("the equation adds two terms that are not independent")
        out = Cov(self.tape, self.C + other.C, self.kept + other.kept, self.terms | other.terms)
        out.stem = self.stem or other.stem
        of_stem = np.diagonal(self.C) * self.share + np.diagonal(other.C) * other.share
        out.share = _ratio(of_stem, np.diagonal(out.C))

        def step() -> None:
            self.G = self.G + out.G
            other.G = other.G + out.G

        self.tape.steps.append(step)
        return out

    def __rmul__(self, factor: float) -> "Cov":
        out = self.then(factor**2 * self.C, lambda G: factor**2 * G, factor * self.kept)
        out.stem, out.share = self.stem, self.share
        return out

    __mul__ = __rmul__

    def then(self, C: Matrix, adjoint: Adjoint, kept: Matrix | None = None) -> "Cov":
        """The result of one operation: independent of this operand unless something is ``kept``."""
        out = Cov(self.tape, C, kept, None if kept is None else self.terms)

        def step() -> None:
            self.G = self.G + adjoint(out.G)

        self.tape.steps.append(step)
        return out


def _ratio(part: Matrix, whole: Matrix) -> Matrix:
    ratio: Matrix = np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
    return ratio


def normed(kernel: kernels.RMSNorm | kernels.BatchNorm, x: Cov) -> Cov:
    """The operand after a norm. Every token's share of the embedding shrinks with it.

    The projection off xhat, 1/d of an isotropic gradient, is corrected to first order where norms
    follow each other on the stream, because there the d-th parts add up over the depth:

    - under a later norm with z' = xhat + f(xhat) the gradient is already orthogonal to xhat (Euler:
      delta_x x = delta_z z for f of degree 1), so this norm takes nothing away;
    - sigma_i^2 fluctuates with the branch's weights, and so does the gradient that comes through
      the same weights. For a linear branch, with h the share of the stem in the variance of z:
      E[1/sigma^2] gains 2 (1 - h^2)/d, the way back through W loses (1 - h^2)/d.

    Together a factor 1 + (1 - h^2)/d in place of 1 - 1/d. At the top ``along`` says what share of
    the gradient lies along xhat.
    """
    K, adjoint = kernel(x.C)
    shrink = np.sqrt(_ratio(np.diagonal(K), np.diagonal(x.C)))
    out = x.then(K, lambda G: _first_order(kernel, out, x.share) * adjoint(G), shrink * x.kept)
    out.stem, out.share = out, np.ones(len(K))
    if x.stem is not None:
        x.stem.held = True
    return out


def _first_order(kernel: kernels.RMSNorm | kernels.BatchNorm, out: Cov, share: Matrix) -> Matrix:
    """Factor on a norm's gradient: what it takes off along xhat, as far as that is known."""
    factor = np.ones_like(out.C)
    if not isinstance(kernel, kernels.RMSNorm):  # its own adjoint says all that is known
        return factor
    if out.held:
        gain = np.sqrt(1 + (2 - share**2) / kernel.width)
        return factor * gain[:, None] * gain
    if len(out.along):
        k, d = np.diagonal(out.C), kernel.width
        taken = _ratio((2 - k) * out.along, np.diagonal(out.G)) / d
        np.fill_diagonal(factor, (1 - taken) / (1 - (2 - k) * k / d))
    return factor
