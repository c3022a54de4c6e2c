"""Where the theory ends: configs, numbers and external classes that it cannot follow."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from stability.parts.activation_kernels import Matrix

PACKAGE = __name__.partition(".")[0]


class NoTheory(Exception):
    """The recursion does not cover this config; the message says what."""


@contextmanager
def following(*parts: object) -> Iterator[None]:
    """Calls of a config's classes: what an external one raises becomes NoTheory.

    An external class may do what covariances cannot, and raise anything. An error of a built-in
    class is a bug and passes, as does an OverflowError: numbers of any class may exceed fp64.

    Args:
        parts: the objects that are called.
    """
    try:
        yield
    except (NoTheory, OverflowError):
        raise
    except Exception as error:
        names = [name for part in parts if (name := _external_name(part))]
        if not names:
            raise
        what = f"{', '.join(names)}: {type(error).__name__}: {error}"
        raise NoTheory(f"the theory cannot follow {what}") from error


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
