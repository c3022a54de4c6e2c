"""Records every operation of a pass and names the one that made the first non-finite value.

Works below autograd, on the operations that torch dispatches, forward and backward. The culprit is
the first operation whose output holds NaN or Inf although all of its inputs were finite.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from stability.config.names import Key


@dataclass(frozen=True)
class TensorSummary:
    """An input or output of an operation."""

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
    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]

    @property
    def is_culprit(self) -> bool:
        """Whether an output is not finite although every input is."""
        nonfinite_output = any(t.nonfinite for t in self.outputs)
        return nonfinite_output and not any(t.nonfinite for t in self.inputs)


def _summaries(tensors: Any) -> tuple[TensorSummary, ...]:
    floats = [t for t in tree_leaves(tensors) if isinstance(t, Tensor) and t.is_floating_point()]
    found = []
    for t in floats:
        finite = t.detach().to("cpu", torch.float64).flatten()
        finite = finite[finite.isfinite()]
        absmax = float(finite.abs().max()) if len(finite) else float("nan")
        dtype = str(t.dtype).removeprefix("torch.")
        found.append(TensorSummary(dtype, tuple(t.shape), absmax, t.numel() - len(finite)))
    return tuple(found)


_IGNORED_OPS = ("empty", "full", "scalar_tensor", "new_", "masked_fill")
"""Operations whose outputs are not checked: uninitialised memory, and masks filled with -inf."""


@dataclass
class OperationTrace(TorchDispatchMode):
    """Collects the operations of what runs in its ``with`` block.

    Args:
        sites: the model's sites; a backward operation's place is the last site whose gradient was
            complete when it ran.
        projections: the modules of matrices by their names in words; operations inside of one, and
            of its backward pass, have it as their place.
    """

    sites: Mapping[Key, nn.Module]
    projections: Mapping[str, nn.Module] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase, self.place = "forward", "start"
        self._hooks: list[Any] = []

    def __enter__(self) -> "OperationTrace":
        names: dict[nn.Module, str] = {}
        for key, module in self.sites.items():
            names.setdefault(module, str(key))

        def hook(module: nn.Module, _: Any, output: Any) -> None:
            self.place = f"after {names[module]}"
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(lambda _: self._move(names[module]))

        self._hooks = [m.register_forward_hook(hook) for m in names]
        for words, module in self.projections.items():
            self._hooks += self._follow(words, module)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def _follow(self, words: str, module: nn.Module) -> Iterator[RemovableHandle]:
        """Hooks that make a projection the place of its operations, forward and backward."""

        def begin(*_: Any) -> None:
            self.place = f"in the {words}"

        def end(module: nn.Module, _: Any, output: Any) -> None:
            self.place = f"after the {words}"
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(backward)

        def backward(_: Tensor) -> None:
            self.phase, self.place = "backward", f"in the {words}"

        yield module.register_forward_pre_hook(begin)
        yield module.register_forward_hook(end)

    def _move(self, name: str) -> None:
        self.phase, self.place = "backward", f"after the gradient at {name}"

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for handle in self._hooks:
            handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        filled = any(name.removeprefix("aten.").startswith(s) for s in _IGNORED_OPS)
        silent = filled or func.is_view
        inputs = () if silent else _summaries((args, kwargs))
        result = func(*args, **kwargs)
        if not silent:
            outputs = _summaries(result)
            number = len(self.operations)
            operation = Operation(number, self.phase, self.place, name, inputs, outputs)
            self.operations.append(operation)
        return result

    def culprit(self) -> Operation | None:
        """The first operation that made a non-finite value out of finite inputs, if any."""
        return next((op for op in self.operations if op.is_culprit), None)
