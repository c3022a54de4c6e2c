"""What can be measured of any tensor that a model returns or an optimizer updates."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves


class Unmeasurable(Exception):
    """A tensor without values that could be measured; the reason in words."""


class Local(NamedTuple):
    """The entries of a tensor that this process measures: all, unless processes share the tensor.

    Its parts over all processes merge into the statistics of the whole tensor.
    """

    values: Tensor
    is_counted: bool = True
    """False if another process measures the same entries."""
    split: frozenset[int] = frozenset()
    """Axes of which other processes hold a part."""
    later: frozenset[int] = frozenset()
    """Axes of which another process holds the beginning."""


def local(x: Tensor) -> Local:
    """The entries that this process measures, as a dense tensor of real numbers.

    Of complex numbers these are the magnitudes, of a sparse tensor the entries that are not stored
    count as zeros, of a nested tensor the entries of all its parts, of a distributed one the
    entries that this process holds.

    Raises:
        Unmeasurable: whole numbers, truth values, a tensor without data, or partial sums.
    """
    if is_lazy(x):
        raise Unmeasurable("it is not initialized")
    if not isinstance(x, DTensor):
        return Local(_dense(x.detach()))
    is_counted, split, later = True, set(), set()
    for coordinate, placement in zip(_coordinates(x), x.placements, strict=True):
        if isinstance(placement, Shard):
            axis = placement.dim % max(x.ndim, 1)
            split.add(axis)
            later |= {axis} if coordinate else set()
        elif placement.is_replicate():
            is_counted &= coordinate == 0
        else:
            raise Unmeasurable(f"its placement is {placement}")
    return Local(_dense(own(x)), is_counted, frozenset(split), frozenset(later))


def _coordinates(x: DTensor) -> list[int]:
    coordinates = x.device_mesh.get_coordinate()
    if coordinates is None:
        raise Unmeasurable("other processes hold it")
    return list(coordinates)


def own(x: Tensor) -> Tensor:
    """What this process stores of a tensor, without its graph."""
    held: Any = x
    return (held.to_local() if isinstance(x, DTensor) else x).detach()


def _dense(x: Tensor) -> Tensor:
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


_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


def is_convolution(module: nn.Module) -> bool:
    """Whether a module is a convolution of torch."""
    return isinstance(module, _CONVOLUTIONS)


def has_channels_first(module: nn.Module, x: Tensor) -> bool:
    """Whether a tensor of a module is an image (batch, channels, positions ...).

    It is if the module is or holds a convolution over as many axes of positions, or a BatchNorm,
    whose channels are those of axis 1 and not those of the last axis.
    """
    for one in module.modules():
        if isinstance(one, _CONVOLUTIONS):
            channels, axes = {one.in_channels, one.out_channels}, len(one.kernel_size) + 2
        elif isinstance(one, nn.modules.batchnorm._BatchNorm):
            channels, axes = {one.num_features}, max(x.ndim, 3)
        else:
            continue
        if x.ndim == axes and x.shape[1] in channels and x.shape[-1] not in channels:
            return True
    return False


def channels_last(x: Tensor) -> Tensor:
    """(batch, channels, positions ...) -> (batch, positions, channels)."""
    return x.movedim(1, -1).flatten(1, -2)


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors of floating or complex numbers in nested tuples, lists and dicts, in order."""
    for leaf in (tree,) if isinstance(tree, Tensor) else tree_leaves(tree):
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            names = [f.name for f in fields(leaf)]
            yield from tensors_in([getattr(leaf, name) for name in names if hasattr(leaf, name)])
