"""Sees the attention logits of any model on their way into the softmax."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)

from stability.recording.external.guard import Guard
from stability.recording.external.logits import (
    Logits,
    of_multihead,
    of_queries_and_keys,
    of_softmax,
)
from stability.recording.external.module_hooks import ModuleHooks, eager

Vectors = dict[str, Tensor]
"""Statistics by the name of the site."""

SOFTMAX = (torch.softmax, F.softmax, Tensor.softmax)


class _Watch(TorchFunctionMode):
    """Looks at the calls of functions of torch, and changes none."""

    def __init__(self, look: Callable[[Any, Any, Any], None]) -> None:
        super().__init__()
        self._look = look

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not torch.compiler.is_compiling() and (
            func is F.scaled_dot_product_attention or func in SOFTMAX
        ):
            self._look(func, args, kwargs)
        return func(*args, **kwargs)


class _Run:
    """A call of an attention module that is going on."""

    def __init__(self, module: nn.Module, heads: bool, guard: Guard) -> None:
        self.module, self.heads = module, heads
        self.fused: list[Vectors] = []
        self.plain: list[Vectors] = []
        self.watch = _Watch(guard(self._look))

    @torch.no_grad()
    def _look(self, func: Any, args: Any, kwargs: Any) -> None:
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if any(isinstance(x, DTensor) or x.is_nested for x in given):
            return
        if func is F.scaled_dot_product_attention:
            self.fused.append(_fused(*args, **kwargs).vectors(self.heads))
        elif (logits := _softmax(*args, **kwargs)) is not None:
            self.plain.append(logits.vectors(self.heads))


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Logits:
    return of_queries_and_keys(query, key, attn_mask, is_causal, scale)


def _softmax(input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> Logits | None:
    is_over_keys = dim in (-1, input.ndim - 1) and input.ndim > 2 and input.is_floating_point()
    return of_softmax(input) if is_over_keys else None


class AttentionHooks:
    """Hooks that see the logits of attention modules.

    Args:
        modules: that compare queries with keys.
        hooks: where hooks are registered.
        is_wanted: whether the pass that runs is measured.
        heads: whether each head is measured as well.
        guard: runs what measures.
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        hooks: ModuleHooks,
        is_wanted: Callable[[], bool],
        heads: bool,
        guard: Guard,
    ) -> None:
        self._is_wanted, self._heads, self._guard = is_wanted, heads, guard
        self._running: list[_Run] = []
        self._ended: _Run | None = None
        self._computed: dict[nn.Module, list[Vectors]] = {}
        """By module: of torch's modules inside, which take other ways under a mode."""
        for module in modules:
            inside = [m for m in module.modules() if isinstance(m, nn.MultiheadAttention)]
            for one in inside:
                hook = eager(guard(partial(self._compute, module)))
                hooks.after(one, hook)
            if not inside:
                hooks.before(module, self._before)
                hooks.after(module, self._after, always=True)

    def seen_by(self, module: nn.Module) -> list[Vectors]:
        """What the call of a module that has just ended showed: statistics by site."""
        if module in self._computed:
            return self._computed.pop(module)
        ended, self._ended = self._ended, None
        if ended is None or ended.module is not module:
            return []
        return ended.fused or ended.plain

    def _compute(self, outer: nn.Module, module: Any, args: Any, kwargs: Any, _: Any) -> None:
        if not self._is_wanted():
            return
        with torch.no_grad():
            if logits := of_multihead(module, args, kwargs):
                self._computed.setdefault(outer, []).append(logits.vectors(self._heads))

    def _before(self, module: nn.Module, _: Any) -> None:
        # Compiled code is left alone: a mode around a graph would be a part of it.
        if torch.compiler.is_compiling() or get_eval_frame_callback() is not None:
            return
        if any(run.module is module for run in self._running):
            self.reset()  # an interrupt has kept it from ending
        if self._guard.is_active and self._is_wanted():
            self._running.append(_Run(module, self._heads, self._guard))
            self._running[-1].watch.__enter__()  # type: ignore[no-untyped-call]

    def _after(self, module: nn.Module, *_: Any) -> None:
        if torch.compiler.is_compiling() or not any(r.module is module for r in self._running):
            return
        while (ended := self._pop()).module is not module:
            pass
        self._ended = ended

    def _pop(self) -> _Run:
        run = self._running.pop()
        modes = _get_current_function_mode_stack()
        if run.watch in modes:
            above = [_pop_mode() for _ in modes[modes.index(run.watch) :]]
            for mode in above[-2::-1]:  # which the module has opened and not closed
                _push_mode(mode)
        return run

    def reset(self) -> None:
        """Forget the calls that have not ended."""
        while self._running:
            self._pop()
