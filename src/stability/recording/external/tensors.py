"""What can be measured of any tensor that a model returns or an optimizer updates."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


class Unmeasurable(Exception):
    """A tensor without values that could be measured; the reason in words."""


def measurable(x: Tensor) -> Tensor:
    """The tensor's values as a dense tensor of real numbers.

    Of complex numbers these are the magnitudes, of a sparse tensor the entries that are not stored
    count as zeros, of a nested tensor the entries of all its parts.

    Raises:
        Unmeasurable: whole numbers, truth values, or a tensor without data.
    """
    x = x.detach()
    if x.device.type == "meta":
        raise Unmeasurable("it is on the meta device and has no data")
    if x.is_nested:
        x = x.values() if x.layout is torch.jagged else torch.cat([p.flatten() for p in x.unbind()])
    if x.layout is not torch.strided:
        x = x.to_dense()
    if x.is_complex():
        x = x.abs()
    if not x.is_floating_point():
        raise Unmeasurable(f"it holds {str(x.dtype).removeprefix('torch.')}")
    return x.float() if x.element_size() == 1 else x  # torch computes little in 8-bit formats


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors of floating or complex numbers in nested tuples, lists and dicts, in order."""
    for leaf in (tree,) if isinstance(tree, Tensor) else tree_leaves(tree):
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            yield leaf
        elif not isinstance(leaf, Tensor) and hasattr(leaf, "__dataclass_fields__"):
            yield from tensors_in([getattr(leaf, name) for name in leaf.__dataclass_fields__])
