"""Covariances that run through a placement's equation, and sublayers as maps of them.

A `Cov` represents the residual stream x_ND of N tokens. At infinite width features are independent:
C_ij = E[x_i x_j] describes x, and G_ij, the same of dLoss/dx, describes its gradient. It supports
what equations use: ``+`` of independent terms adds, ``a *`` multiplies by a^2, norms and sublayers
are maps of C. Every operation writes its adjoint on a tape; `Tape.reverse` runs them backwards,
which turns the G of the output into the G of everything before it.

A net of width d is one draw of weights. Its Gram matrix x_i x_j / d deviates from C, relatively by
1/sqrt(d). `Cov.deviations` says how far, for the embedding, W x, a norm's output and their sums.
"""

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from stability.parts.activation_kernels import Matrix
from stability.theory.limits import NoTheory, decomposing, require_shape
from stability.theory.norm_kernels import Adjoint, Kernel, RMSNorm

Deviations = Mapping[int, NDArray[np.float64]]
"""Number of a draw of weights -> standard deviations of (mean square, x_i x_j / d with i != j).

Draws are independent. For x_i x_j / d the root mean square over pairs is given. Pairs of
tokens deviate independently: the deviations average out in the mean square of this tensor, but
raise the variance of the next one.
"""


class Tape:
    """The operations done, and one stream of random numbers for those that sample.

    Args:
        seed: of the random numbers.
        width: features d of the stream.
    """

    def __init__(self, seed: int = 0, width: float = math.inf) -> None:
        self.steps: list[Callable[[], None]] = []
        self.rng = np.random.Generator(np.random.Philox(key=seed))
        self.width, self.draws = width, 0

    def draw(self, mean: float, pair: float) -> Deviations:
        """Deviations of one new draw of weights.

        Args:
            mean: d * variance of the mean square.
            pair: d * variance of x_i x_j / d, mean over i != j.
        """
        self.draws += 1
        return {self.draws: np.sqrt(np.array([mean, pair]) / self.width)}

    def reverse(self) -> None:
        for step in reversed(self.steps):
            step()


class Cov:
    """Covariance of an x_ND, and after `Tape.reverse` of its gradient.

    Args:
        tape: where its operations are written.
        C: E[x_i x_j] per feature.
        embedding_factor: c_i [N] in x_i = c_i x_0i + rest, the rest independent of the
            embedding x_0i.
        sources: identities of its independent summands; adding two operands with a common one
            raises NoTheory.

    Attributes:
        G: covariance of dLoss/dx.
        last_norm: output z of the last norm before it on the stream: x = z + branches.
        norm_share: Var(z_i) / Var(x_i) [N], z the output of ``last_norm``.
        feeds_norm: True for a norm's output z if a later norm reads z + branches.
        radial: E[(delta_i . x_i)^2] / d [N], equal to G_ii C_ii for an isotropic delta; empty where
            it is not computed (all but the head's input).
        deviations: of its Gram matrix at finite width; None where they are not known.
    """

    def __init__(
        self,
        tape: Tape,
        C: Matrix,
        embedding_factor: Matrix | None = None,
        sources: frozenset[object] | None = None,
    ) -> None:
        self.tape, self.C = tape, C
        self.embedding_factor = np.zeros(len(C)) if embedding_factor is None else embedding_factor
        self.sources = frozenset([object()]) if sources is None else sources
        self.G = np.zeros_like(C)
        self.last_norm: Cov | None = None
        self.norm_share, self.radial = np.zeros(len(C)), np.zeros(0)
        self.feeds_norm = False
        self.deviations: Deviations | None = None

    @property
    def spread(self) -> float:
        """Relative standard deviation of the mean square over nets of this width, or NaN."""
        if self.deviations is None or not self.square > 0:
            return math.nan
        spread = np.linalg.norm([mean for mean, _ in self.deviations.values()]) / self.square
        return float(spread) if np.isfinite(spread) else math.nan

    @property
    def square(self) -> np.float64:
        """Mean over tokens of C_ii. NumPy's, which overflows to infinity and not to an error."""
        return np.float64(np.diagonal(self.C).mean())

    def __add__(self, other: "Cov") -> "Cov":
        if not isinstance(other, Cov):
            raise NoTheory(f"covariances cannot add {type(other).__name__}")
        if self.sources & other.sources:
            raise NoTheory("the equation adds two terms that are not independent")
        factor = self.embedding_factor + other.embedding_factor
        out = Cov(self.tape, self.C + other.C, factor, self.sources | other.sources)
        out.last_norm = self.last_norm or other.last_norm
        of_norm = np.diagonal(self.C) * self.norm_share + np.diagonal(other.C) * other.norm_share
        out.norm_share = _ratio(of_norm, np.diagonal(out.C))
        if self.deviations is not None and other.deviations is not None:
            # x f / d has mean 0, as the branch's weights are independent of the stream.
            both = overlap(self, other)
            cross = self.tape.draw(4 * both, 2 * self.square * other.square + 2 * both)
            out.deviations = summed(self.deviations, other.deviations, cross)

        def step() -> None:
            self.G = self.G + out.G
            other.G = other.G + out.G

        self.tape.steps.append(step)
        return out

    def __rmul__(self, factor: float) -> "Cov":
        if not isinstance(factor, Real):
            raise NoTheory(f"covariances cannot multiply {type(factor).__name__}")
        out = self.then(factor**2 * self.C, lambda G: factor**2 * G, factor * self.embedding_factor)
        out.last_norm, out.norm_share = self.last_norm, self.norm_share
        out.deviations = None if self.deviations is None else scaled(factor**2, self.deviations)
        return out

    __mul__ = __rmul__

    def then(self, C: Matrix, adjoint: Adjoint, embedding_factor: Matrix | None = None) -> "Cov":
        """One operation with output covariance C [N, N] and this adjoint.

        The result is independent of this operand, unless ``embedding_factor`` [N] is given.
        """
        sources = None if embedding_factor is None else self.sources
        out = Cov(self.tape, C, embedding_factor, sources)

        def step() -> None:
            self.G = self.G + adjoint(out.G)

        self.tape.steps.append(step)
        return out

    @classmethod
    def __torch_function__(cls, function: Any, *_: object) -> NoReturn:
        """Refuse a function of PyTorch, which calls this in place of the function."""
        raise NoTheory(f"covariances have no {function.__name__}")

    if not TYPE_CHECKING:  # mypy is to find attributes that do not exist

        def __getattr__(self, name: str) -> NoReturn:
            """Refuse an attribute of tensors that covariances lack."""
            if name.startswith("__"):
                raise AttributeError(name)
            raise NoTheory(f"covariances have no {name}")


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object) -> NoReturn:
        raise NoTheory(f"covariances have no {name}")

    return refuse


for _name in (
    *("sub", "truediv", "floordiv", "mod", "pow", "matmul", "neg", "abs", "getitem", "iter"),
    *("radd", "rsub", "rtruediv", "rpow", "rmatmul", "lt", "le", "gt", "ge"),
):
    setattr(Cov, f"__{_name}__", _refusal(f"__{_name}__"))


def gaussian(x: Cov) -> Deviations:
    """Deviations of a Gram matrix of d independent features N(0, C).

    The variances are 2 p/d of the mean square and (mean(C_ii)^2 + p)/d of pairs, p = `overlap`.
    """
    both = overlap(x, x)
    return x.tape.draw(2 * both, x.square**2 + both)


def overlap(x: Cov, y: Cov) -> np.float64:
    """Mean over i, j of E[(x_i.x_j/d)(y_i.y_j/d)].

    It is C^x_ij C^y_ij + covariance of their deviations.
    """
    a, b = x.deviations or {}, y.deviations or {}
    common = sum(a[draw][1] * b[draw][1] for draw in a.keys() & b.keys())
    return np.float64((x.C * y.C).mean() + common)


def scaled(factor: float | Matrix, deviations: Deviations) -> Deviations:
    """Each deviation times a factor, or (factor of the mean square, factor of pairs)."""
    return {draw: factor * size for draw, size in deviations.items()}


def summed(*deviations: Deviations) -> Deviations:
    """Sum of deviations; those of the same draw add linearly."""
    total: dict[int, NDArray[np.float64]] = {}
    for each in deviations:
        for draw, size in each.items():
            total[draw] = total.get(draw, np.zeros(2)) + size
    return total


def _ratio(part: Matrix, whole: Matrix) -> Matrix:
    ratio: Matrix = np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
    return ratio


def normed(kernel: Kernel, x: Cov) -> Cov:
    """The operand after a norm. Every token's share of the embedding shrinks with it.

    The projection off xhat, 1/d of an isotropic gradient, is corrected to first order where norms
    follow each other on the stream, because there the terms of order 1/d add up over the depth:

    - under a later norm with z' = xhat + f(xhat) the gradient is already orthogonal to xhat (Euler:
      delta_x x = delta_z z for f of degree 1), so this norm takes nothing away;
    - sigma_i^2 fluctuates with the branch's weights, and so does the gradient that comes through
      the same weights. For a linear branch, with h the ``norm_share`` of xhat in the variance of z:
      E[1/sigma^2] gains 2 (1 - h^2)/d, the way back through W loses (1 - h^2)/d.

    Together a factor 1 + (1 - h^2)/d in place of 1 - 1/d. At the head ``radial`` gives the share of
    the gradient along xhat.
    """
    with decomposing(x.C):
        K, adjoint = kernel(x.C)
        require_shape(x.C, K)

    def back(G: Matrix) -> Matrix:
        through = adjoint(G)
        require_shape(G, through)
        return _first_order(kernel, out, x.norm_share) * through

    shrink = np.sqrt(_ratio(np.diagonal(K), np.diagonal(x.C)))
    out = x.then(K, back, shrink * x.embedding_factor)
    out.last_norm, out.norm_share = out, np.ones(len(K))
    # The mean square no longer deviates; the directions do as before.
    out.deviations = scaled(np.array([0, 1 / x.square]), x.deviations or {}) if x.square else {}
    if x.last_norm is not None:
        x.last_norm.feeds_norm = True
    return out


def _first_order(kernel: Kernel, out: Cov, share: Matrix) -> Matrix:
    """Correction [N, N] of an RMSNorm's adjoint to first order in 1/d; see `normed`. Else ones."""
    factor = np.ones_like(out.C)
    if not isinstance(kernel, RMSNorm):  # its own adjoint says all that is known
        return factor
    if out.feeds_norm:
        gain = np.sqrt(1 + (2 - share**2) / kernel.width)
        return factor * gain[:, None] * gain
    if len(out.radial):
        k, d = np.diagonal(out.C), kernel.width
        taken = _ratio((2 - k) * out.radial, np.diagonal(out.G)) / d
        np.fill_diagonal(factor, (1 - taken) / (1 - (2 - k) * k / d))
    return factor
