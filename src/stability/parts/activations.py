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

if TYPE_CHECKING:
    from torch import Tensor


class Activation(ABC):
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
    """x Phi(x), Phi the normal distribution function. Source: arXiv:1606.08415."""

    def __call__(self, x: "Tensor") -> "Tensor":
        from torch.nn.functional import gelu

        return gelu(x)

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.gelu(C)


class GELUTanh(Activation):
    """x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2: GPT-2's GELU. Source: arXiv:1606.08415."""

    def __call__(self, x: "Tensor") -> "Tensor":
        from torch.nn.functional import gelu

        return gelu(x, approximate="tanh")

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.gelu_tanh(C)


class ReLU(Activation):
    """max(x, 0)."""

    def __call__(self, x: "Tensor") -> "Tensor":
        return x.relu()

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.relu(C)


class Tanh(Activation):
    """tanh(x)."""

    def __call__(self, x: "Tensor") -> "Tensor":
        return x.tanh()

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.tanh(C)


class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    def __call__(self, x: "Tensor") -> "Tensor":
        return x.sigmoid()

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.sigmoid(C)


class Identity(Activation):
    """x: the MLP is a product of two matrices."""

    def __call__(self, x: "Tensor") -> "Tensor":
        return x

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.identity(C)


class SwiGLU(Activation):
    """W2 (silu(Wg x) * W1 x) with silu(x) = x sigmoid(x). Source: arXiv:2002.05202.

    W1 and Wg have the hidden width of the other activations: half as many weights again.
    """

    gated = True

    def __call__(self, x: "Tensor") -> "Tensor":
        from torch.nn.functional import silu

        return silu(x)

    def kernel(self, C: Matrix) -> tuple[Matrix, Matrix]:
        return activation_kernels.silu(C)
