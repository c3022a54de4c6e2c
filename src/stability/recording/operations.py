"""Watches every operation of a pass and names the one that made the first non-finite value.

Works below autograd, on the operations that torch dispatches, forward and backward: an operation is
to blame where an output holds NaN or Inf while all that it read was finite.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stability.config.names import Key


@dataclass(frozen=True)
class Seen:
    """A tensor as an operation read or wrote it."""

    dtype: str
    shape: tuple[int, ...]
    absmax: float
    nonfinite: int


@dataclass(frozen=True)
class Operation:
    """One dispatched operation: where in the network, what it read, what it wrote."""

    number: int
    phase: str
    place: str
    name: str
    inputs: tuple[Seen, ...]
    outputs: tuple[Seen, ...]

    @property
    def is_culprit(self) -> bool:
        """Whether it made a non-finite value out of finite ones."""
        made = any(t.nonfinite for t in self.outputs)
        return made and not any(t.nonfinite for t in self.inputs)


def _see(tensors: Any) -> tuple[Seen, ...]:
    floats = [t for t in tree_leaves(tensors) if isinstance(t, Tensor) and t.is_floating_point()]
    seen = []
    for t in floats:
        finite = t.detach().to("cpu", torch.float64).flatten()
        finite = finite[finite.isfinite()]
        absmax = float(finite.abs().max()) if len(finite) else float("nan")
        dtype = str(t.dtype).removeprefix("torch.")
        seen.append(Seen(dtype, tuple(t.shape), absmax, t.numel() - len(finite)))
    return tuple(seen)


# Memory that is filled later and masks, which hold what they hold on purpose.
_SILENT = ("empty", "full", "scalar_tensor", "new_", "masked_fill")


@dataclass
class Trace(TorchDispatchMode):
    """Collects the operations of whatever runs inside it.

    Args:
        sites: the model's sites; a backward operation's place is the last site whose gradient was
            complete when it ran.
    """

    sites: Mapping[Key, nn.Module]
    operations: list[Operation] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase, self.place = "forward", "start"
        self._hooks: list[Any] = []

    def __enter__(self) -> "Trace":
        names: dict[nn.Module, str] = {}
        for (layer, sublayer, name), module in self.sites.items():
            names.setdefault(module, f"layer {layer}, {sublayer}, {name}")

        def hook(module: nn.Module, _: Any, output: Any) -> None:
            self.place = f"after {names[module]}"
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(lambda _: self._move(names[module]))

        self._hooks = [m.register_forward_hook(hook) for m in names]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def _move(self, name: str) -> None:
        self.phase, self.place = "backward", f"after the gradient at {name}"

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for handle in self._hooks:
            handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        filled = any(name.removeprefix("aten.").startswith(s) for s in _SILENT)
        silent = filled or func.is_view
        inputs = () if silent else _see((args, kwargs))
        result = func(*args, **kwargs)
        if not silent:
            outputs = _see(result)
            number = len(self.operations)
            made = Operation(number, self.phase, self.place, name, inputs, outputs)
            self.operations.append(made)
        return result

    def culprit(self) -> Operation | None:
        """The first operation that made a non-finite value out of finite ones."""
        return next((op for op in self.operations if op.is_culprit), None)
