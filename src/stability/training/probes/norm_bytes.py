"""Bytes that the operations of each norm read and write, per token, forward and backward.

Counted below autograd from the sizes of all tensors that an operation takes and gives; views move
nothing. It is the traffic of the operations that run here, eagerly: a kernel that fuses them moves
x and y once, in LayerNorm and RMSNorm alike but for one number a token and beta.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stability.training.probes._context import NORMS, Item, ProbeContext, Row

ITEMS = (
    Item(
        NORMS,
        "`norm`, `norm.out`",
        "bytes per token that it reads and writes, there and back",
    ),
)


class Traffic(TorchDispatchMode):
    """Sums the bytes of what each dispatched operation takes and gives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            moved = tree_leaves((args, kwargs, result))
            self.bytes += sum(t.nbytes for t in moved if isinstance(t, Tensor))
        return result


def rows(context: ProbeContext) -> Iterator[Row]:
    for key, norm in context.norms().items():
        x_BTD = context.shared_pass.norms[key].detach().requires_grad_()
        delta_BTD = torch.zeros_like(x_BTD)
        with torch.enable_grad(), Traffic() as traffic:
            y_BTD = norm(x_BTD)
            torch.autograd.grad(y_BTD, [x_BTD, *norm.parameters(recurse=False)], delta_BTD)
        yield *key, traffic.bytes / x_BTD[..., 0].numel()
