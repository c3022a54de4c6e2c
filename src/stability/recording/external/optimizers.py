"""Hooks on every optimizer and gradient scaler: when an update is made, and when it is left out."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stability.recording.external import scalers
from stability.recording.external.guard import Guard


class Listener(Protocol):
    """Who is told of updates."""

    def is_concerned(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer updates parameters that are recorded."""

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """The gradients are complete and the optimizer is about to use them."""

    def before_evaluation(self, again: bool) -> None:
        """The optimizer evaluates its closure, or evaluates it again in the same step."""

    def begin_update(self, optimizer: torch.optim.Optimizer, with_closure: bool) -> None:
        """The optimizer begins a step; with a closure, the passes of the step are still to come."""

    def after_update(self, optimizer: torch.optim.Optimizer, skipped: Tensor | None) -> None:
        """The optimizer has made its step; ``skipped``: > 0 if its kernel left the update out."""

    def scaled(self, scale: Tensor) -> None:
        """The loss was multiplied by a gradient scaler's scale."""

    def left_out(self) -> None:
        """A gradient scaler has left out the update of an optimizer."""


class OptimizerHooks:
    """Tells a listener of every optimizer's steps, closures, and of gradient scalers.

    Args:
        listener: is told.
        guard: runs every hook.
    """

    def __init__(self, listener: Listener, guard: Guard) -> None:
        self._listener, self._guard = listener, guard
        self._running: list[torch.optim.Optimizer] = []
        """Optimizers in their step, the outermost first: some call others."""
        self._stepped = False
        """Whether an optimizer has, since a gradient scaler last began a step."""
        self._handles: list[Any] = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        self.scaled = guard(self._scaled)
        self.scaler_ends_step = guard(self._scaler_ends_step)
        scalers.tell(self)

    def remove(self) -> None:
        """Remove the hooks. May be repeated."""
        for handle in self._handles:
            handle.remove()
        scalers.tell_no_more(self)

    def scaler_begins_step(self) -> None:
        """A gradient scaler's step begins."""
        self._stepped = False

    def _scaled(self, scaler: Any) -> None:
        if scaler.is_enabled() and scaler._scale is not None:
            self._listener.scaled(scaler._scale.detach().clone())

    def _scaler_ends_step(self, scaler: Any, optimizer: Any) -> None:
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps optimizers
        if not self._stepped and scaler.is_enabled() and self._listener.is_concerned(inner):
            self._listener.left_out()

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        self._stepped = True
        if optimizer in self._running:  # its last step raised an error
            self._running.clear()
        self._running.append(optimizer)
        changed: list[Any] = []
        self._guard(self._prepare)(optimizer, args, kwargs, changed)
        return tuple(changed) if changed else None

    def _prepare(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any, changed: list[Any]
    ) -> None:
        """Tell the listener; with a closure, put into ``changed`` the arguments that tell later."""
        if len(self._running) > 1 or not self._listener.is_concerned(optimizer):
            return
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._listener.begin_update(optimizer, closure is not None)
        if closure is None:
            self._listener.before_update(optimizer)
        elif len(args) > 1:
            changed += [(args[0], self._telling_closure(optimizer, closure), *args[2:]), kwargs]
        else:
            changed += [args, {**kwargs, "closure": self._telling_closure(optimizer, closure)}]

    def _telling_closure(
        self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]
    ) -> Callable[[], Any]:
        """The closure; what it leaves in the gradients is what the optimizer uses."""
        evaluated = 0

        @wraps(closure)
        def telling() -> Any:
            nonlocal evaluated
            self._guard(self._listener.before_evaluation)(evaluated > 0)
            evaluated += 1
            loss = closure()
            self._guard(self._listener.before_update)(optimizer)
            return loss

        return telling

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        while self._running and self._running.pop() is not optimizer:
            pass  # the step of an inner optimizer raised an error
        if not self._running:
            self._guard(self._conclude)(optimizer)

    def _conclude(self, optimizer: torch.optim.Optimizer) -> None:
        if self._listener.is_concerned(optimizer):
            found_inf = getattr(optimizer, "found_inf", None)
            self._listener.after_update(optimizer, found_inf)
