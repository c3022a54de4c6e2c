"""Hooks on modules that neither a pickle nor a copy of the module carries.

What they measure is said in `recording.external.passes`.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

_PLACES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
"""Where a module keeps its hooks, by the id of the hook."""

_ids: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()
"""Ids of the hooks of all recordings, by module."""


class ModuleHooks:
    """Hooks on modules, all removed together.

    While a module has one, its ``__getstate__`` leaves the hook out: ``torch.save(model)`` and
    ``copy.deepcopy(model)`` work as they do without hooks.
    """

    def __init__(self) -> None:
        self._handles: list[tuple[nn.Module, Any]] = []

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
        self._handles.append((module, handle))
        _ids.setdefault(module, set()).add(handle.id)
        object.__setattr__(module, "__getstate__", partial(_state_without_hooks, module))

    def remove(self) -> None:
        """Leave every module as it was."""
        for module, handle in self._handles:
            handle.remove()
            _ids[module].discard(handle.id)
            if not _ids[module]:
                del _ids[module]
                module.__dict__.pop("__getstate__", None)
        self._handles.clear()


def _state_without_hooks(module: nn.Module) -> Any:
    """What pickles and copies are made of, as if no recording had hooks on the module."""
    state = type(module).__getstate__(module)
    if not isinstance(state, dict):
        return state
    ours = _ids.get(module, set())
    state = {name: value for name, value in state.items() if name != "__getstate__"}
    for name in _PLACES:
        if state.get(name):
            state[name] = OrderedDict((k, v) for k, v in state[name].items() if k not in ours)
    return state
