"""Hooks on modules that neither a pickle nor a copy of the module carries.

What they measure is said in `recording.external.passes`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
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


def eager(hook: Callable[..., None]) -> Callable[..., None]:
    """The hook, kept out of compiled graphs."""
    return torch._disable_dynamo(hook)  # type: ignore[attr-defined]


class ModuleHooks:
    """Hooks on modules, all removed together.

    While a module has one, its `_METHODS` leave the hook out: ``torch.save(model)`` and
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
        for name, method in _METHODS.items():
            object.__setattr__(module, name, partial(method, module))

    def remove(self) -> None:
        """Leave every module as it was."""
        for module, handle in self._handles:
            handle.remove()
            _ids[module].discard(handle.id)
            if not _ids[module]:
                del _ids[module]
                for name in _METHODS:
                    module.__dict__.pop(name, None)
        self._handles.clear()


def _attributes_without_hooks(module: nn.Module, attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a module, as if no recording had hooks on it."""
    ours = _ids.get(module, set())
    clean = {name: value for name, value in attributes.items() if name not in _METHODS}
    for name in _PLACES:
        if clean.get(name):
            clean[name] = OrderedDict((k, v) for k, v in clean[name].items() if k not in ours)
    return clean


def _state_without_hooks(module: nn.Module) -> Any:
    """What pickles and shallow copies are made of."""
    state = type(module).__getstate__(module)
    return _attributes_without_hooks(module, state) if isinstance(state, dict) else state


@contextmanager
def _hooks_set_aside(module: nn.Module) -> Iterator[None]:
    """For classes that copy or pickle the attributes of a module in their own way."""
    attributes = module.__dict__
    held = {name: attributes[name] for name in (*_PLACES, *_METHODS) if name in attributes}
    clean = _attributes_without_hooks(module, held)
    try:
        for name in _METHODS:
            attributes.pop(name, None)
        attributes.update(clean)
        yield
    finally:
        attributes.update(held)


def _deepcopy_without_hooks(module: nn.Module, memo: dict[int, Any]) -> Any:
    with _hooks_set_aside(module):
        return deepcopy(module, memo)


def _reduced_without_hooks(module: nn.Module, protocol: int) -> Any:
    """What a pickle is made of: by `_state_without_hooks`, unless the class has its own way."""
    if type(module).__reduce__ is object.__reduce__:
        return type(module).__reduce_ex__(module, protocol)
    with _hooks_set_aside(module):
        return type(module).__reduce_ex__(module, protocol)


_METHODS: dict[str, Callable[..., Any]] = {
    "__getstate__": _state_without_hooks,
    "__deepcopy__": _deepcopy_without_hooks,
    "__reduce_ex__": _reduced_without_hooks,
}
"""Methods of a module while it has hooks of a recording."""
