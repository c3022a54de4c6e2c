"""Activations of the MLP: phi on tensors, and its kernel on covariances.

An activation is free of torch until it is called on a tensor, so that the theory can build it.

To add one: a class here or in a module of your own, and a yaml in ``activation/`` with its label,
its order in legends and ``build: {_target_: ...}``. It is built as ``cls(**rest)``. Without a
`kernel` its runs have no theory.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from stability.parts import activation_kernels
from stability.parts.activation_kernels import Matrix
from stability.parts.published import Published

if TYPE_CHECKING:
    from torch import Tensor


class Activation(Published, ABC):
    """Base of every activation, a function of each entry."""

    gated = False
    """Whether the MLP is W2 (phi(Wg x) * W1 x), with a gate of its own, instead of W2 phi(W1 x)."""

    @abstractmethod
    def __call__(self, x: "Tensor") -> "Tensor":
        """phi(x) in the dtype of x."""

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        """E[phi(u_i) phi(u_j)] and E[phi'(u_i) phi'(u_j)] for Gaussian u of covariance C_NN."""
        raise NotImplementedError(f"{type(self).__name__} has no kernel")

    @property
    def has_kernel(self) -> bool:
        return type(self).kernel is not Activation.kernel


class GELU(Activation):
    """x Phi(x), Phi the normal distribution function."""

    source = "arXiv:1606.08415"
    reported = "CIFAR-10: median error 7.89%, ReLU 8.16%"

    def __call__(self, x: "Tensor") -> "Tensor":
        from torch.nn.functional import gelu

        return gelu(x)

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.gelu(C)


class GELUTanh(Activation):
    """x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2: GPT-2's GELU."""

    source = "arXiv:1606.08415"

    def __call__(self, x: "Tensor") -> "Tensor":
        from torch.nn.functional import gelu

        return gelu(x, approximate="tanh")

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.gelu_tanh(C)


class ReLU(Activation):
    """max(x, 0)."""

    source = "Nair and Hinton 2010"
    reported = "restricted Boltzmann machines: better features than binary units (NORB, faces)"

    def __call__(self, x: "Tensor") -> "Tensor":
        return x.relu()

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.relu(C)


class Tanh(Activation):
    """tanh(x)."""

    source = "LeCun et al. 1998"
    reported = "units of zero mean learn faster than the logistic function's"

    def __call__(self, x: "Tensor") -> "Tensor":
        return x.tanh()

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.tanh(C)


class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    source = "Rumelhart, Hinton and Williams 1986"
    combine = "its slope is at most 1/4: deep nets without a residual stream do not learn"

    def __call__(self, x: "Tensor") -> "Tensor":
        return x.sigmoid()

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.sigmoid(C)


class Identity(Activation):
    """x: the MLP is a product of two matrices."""

    source = "arXiv:1312.6120, deep linear nets"

    def __call__(self, x: "Tensor") -> "Tensor":
        return x

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.identity(C)


class SwiGLU(Activation):
    """W2 (silu(Wg x) * W1 x) with silu(x) = x sigmoid(x).

    W1 and Wg have the hidden width of the other activations: half as many weights again.
    """

    source = "arXiv:2002.05202"
    reported = "T5-base on C4, equal parameters, 524k steps: log-perplexity 1.636, GELU 1.679"
    combine = "model.mlp_ratio=2.6667 has about as many weights as 4 with another activation"

    gated = True

    def __call__(self, x: "Tensor") -> "Tensor":
        from torch.nn.functional import silu

        return silu(x)

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.silu(C)
