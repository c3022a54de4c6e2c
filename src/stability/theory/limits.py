"""Where the theory ends: configs, numbers and external classes that it cannot follow."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from stability.parts.activation_kernels import Matrix

PACKAGE = __name__.partition(".")[0]


class NoTheory(Exception):
    """The recursion does not cover this config; the message says why.

    An external kernel may raise it too.
    """


@contextmanager
def naming_external(part: object) -> Iterator[None]:
    """Add the name of an external class to a NoTheory that its call raises.

    Only NoTheory says that covariances cannot do what the class does. Every other error is a bug,
    of the class or of this package, and passes.
    """
    try:
        yield
    except NoTheory as error:
        if not (name := _external_name(part)):
            raise
        raise NoTheory(f"the theory cannot follow {name}: {error}") from error


def require_shape(C: Matrix, *results: Matrix) -> None:
    """Check what a kernel returns for C. Raises ValueError for another shape than C's."""
    for result in results:
        if np.shape(result) != C.shape:
            raise ValueError(f"a kernel returns shape {np.shape(result)} for {C.shape}")


def _external_name(part: object) -> str:
    """Dotted name of the object's class; empty for classes of this package."""
    cls = type(part)
    built_in = cls.__module__.partition(".")[0] == PACKAGE
    return "" if built_in else f"{cls.__module__}.{cls.__qualname__}"


@contextmanager
def decomposing(C: Matrix) -> Iterator[None]:
    """An eigendecomposition of C, which may fail where C is not finite. Raises NoTheory there."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        if np.isfinite(C).all():
            raise
        raise NoTheory("its variances exceed fp64") from error
