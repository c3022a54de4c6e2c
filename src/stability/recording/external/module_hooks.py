"""Hooks on modules that neither a pickle nor a copy of the module carries."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

_FOLDED = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
"""Where a module keeps its hooks, by the id of the hook."""


class ModuleHooks:
    """Hooks on modules, all removed together.

    While a module has one, its ``__getstate__`` leaves the hook out: ``torch.save(model)`` and
    ``copy.deepcopy(model)`` work as they do without hooks.
    """

    def __init__(self) -> None:
        self._handles: dict[nn.Module, list[Any]] = {}

    def after(self, module: nn.Module, hook: Callable[..., None], always: bool = False) -> None:
        """Call ``hook(module, args, kwargs, output)`` after each forward pass of the module.

        Args:
            module: the module.
            hook: the function.
            always: call it also when the forward pass raises; the output is None then.
        """
        self._add(module, module.register_forward_hook(hook, with_kwargs=True, always_call=always))

    def before(self, module: nn.Module, hook: Callable[..., None]) -> None:
        """Call ``hook(module, args)`` before each forward pass of the module, and first."""
        self._add(module, module.register_forward_pre_hook(hook, prepend=True))

    def _add(self, module: nn.Module, handle: Any) -> None:
        if module not in self._handles:
            self._handles[module] = []
            object.__setattr__(module, "__getstate__", partial(self._state_of, module))
        self._handles[module].append(handle)

    def _state_of(self, module: nn.Module) -> Any:
        state = type(module).__getstate__(module)
        if not isinstance(state, dict):
            return state
        ours = {handle.id for handle in self._handles.get(module, ())}
        state = {name: value for name, value in state.items() if name != "__getstate__"}
        for name in _FOLDED:
            held = state.get(name)
            if held:
                state[name] = OrderedDict((k, v) for k, v in held.items() if k not in ours)
        return state

    def remove(self) -> None:
        """Leave every module as it was."""
        for module, handles in self._handles.items():
            for handle in handles:
                handle.remove()
            module.__dict__.pop("__getstate__", None)
        self._handles.clear()
