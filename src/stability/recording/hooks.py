"""Stands at the sites of any module and measures what passes there, in both directions.

Eager modules get forward hooks, and each output that carries a gradient a hook of its own. Sites
inside compiled blocks measure themselves (`Site.watch`) and are read after each pass. Statistics
stay on the device.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from stability.config.names import Key
from stability.parts.norms import recomputing
from stability.recording import stats
from stability.recording.recorded_step import Slot


class Stopwatch:
    """Adds up the host's seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began


class Listener:
    """Hears activations and their gradients from `start` to `stop`.

    Args:
        sites: in the order of execution. A module may stand under several keys; it is measured
            once, and its slot holds all of them.
        kinds: of ``act`` and ``grad`` those to hear; others are not heard here.
        token_dim: which axis of an activation counts tokens.
        compiled: for sites inside compiled blocks, which are prepared here: the tokens of one pass
            and the device.
        clock: runs while something is measured.
        guest: the loop is somebody else's: outputs may be changed in place by those who read them,
            or carry no gradient (a frozen start), and may be any tree of tensors.
    """

    def __init__(
        self,
        sites: Mapping[Key, nn.Module],
        kinds: set[str],
        token_dim: int,
        compiled: tuple[int, torch.device] | None,
        clock: Stopwatch,
        guest: bool = False,
    ) -> None:
        self.guest = guest
        self.kinds, self.token_dim, self.clock = kinds & {"act", "grad"}, token_dim, clock
        self.active = False
        self.expected: list[Slot] = []
        self._passes: dict[Slot, list[tuple[Tensor, Tensor | None]]] = {}
        self._hooks: list[Any] = []
        self._watched: list[tuple[Any, tuple[Key, ...]]] = []
        self._prepared: list[Any] = []
        by_module: dict[nn.Module, list[Key]] = {}
        for key, module in sites.items() if self.kinds else ():
            by_module.setdefault(module, []).append(key)
        for module, keys in by_module.items():
            self._stand_at(module, tuple(keys), compiled)

    def _stand_at(
        self, module: Any, keys: tuple[Key, ...], compiled: tuple[int, torch.device] | None
    ) -> None:
        observable = hasattr(module, "observe")
        groups = [(k,) for k in keys] if observable else [keys]
        kinds = ("act",) if observable else ("act", "grad")
        self.expected += [(k, group) for group in groups for k in kinds if k in self.kinds]
        if compiled is None:
            hook = self._on_observable if observable else self._on_forward
            self._hooks.append(module.register_forward_hook(partial(hook, keys)))
            return
        if module.seen is None:  # else another recorder is here already: share what it has
            tokens, device = compiled
            module.watch(len(stats.FIELDS) + tokens, device)
            self._prepared.append(module)
        self._watched.append((module, keys))

    def detach(self) -> None:
        """Leave the sites as they were."""
        for hook in self._hooks:
            hook.remove()
        for module in self._prepared:
            module.seen = module.leaf = None
        self._hooks.clear()
        self._watched.clear()
        self._prepared.clear()

    def start(self) -> None:
        """Begin a step; what was heard before is forgotten."""
        self._passes = {}
        self._switch(True)

    def stop(self) -> None:
        self._switch(False)

    def _switch(self, active: bool) -> None:
        self.active = active
        for module, _ in self._watched:
            module.watching = active

    def _hears(self) -> bool:
        """Whether the pass belongs to the step: no validation in its midst, no recompute."""
        return self.active and torch.is_grad_enabled() and not recomputing()

    def _on_observable(self, keys: tuple[Key, ...], module: Any, _: Any, output: Any) -> None:
        if not self._hears() or "act" not in self.kinds:
            return
        with self.clock.running():
            shown = module.observe(output)
            for key in keys:
                self._put(("act", (key,)), stats.measure(shown[key.name]), None)

    def _on_forward(self, keys: tuple[Key, ...], module: Any, _: Any, output: Any) -> None:
        if not self._hears():
            return
        tensor = output if isinstance(output, Tensor) else _first_tensor(module, output)
        if "act" in self.kinds:
            self._measure(("act", keys), tensor)
        if "grad" not in self.kinds:
            return
        if tensor.requires_grad:
            self._await_gradient(("grad", keys), tensor)
        elif self.guest:
            self._passes.setdefault(("grad", keys), [])  # there is none: no row

    def _await_gradient(self, slot: Slot, tensor: Tensor) -> None:
        heard = []

        def hook(grad: Tensor) -> None:
            heard.append(True)
            self._measure(slot, grad)

        tensor.register_hook(hook)
        base = tensor._base if self.guest else None
        if base is None or base.grad_fn is None or base.numel() != tensor.numel():
            return
        # Whoever changes a view in place takes its hooks off the graph; what it was made of stays.
        shape, place = tensor.shape, base.output_nr

        def behind(grads: tuple[Tensor | None, ...]) -> None:
            grad = grads[place]
            if not heard and grad is not None:
                self._measure(slot, grad.reshape(shape))

        base.grad_fn.register_prehook(behind)

    def _measure(self, slot: Slot, tensor: Tensor) -> None:
        with self.clock.running(), torch.no_grad():
            if tensor.ndim > max(self.token_dim, 1) and tensor.ndim > 2:
                self._put(slot, *stats.measure_tokens(tensor, self.token_dim))
            else:
                self._put(slot, stats.measure(tensor), None)

    def _put(self, slot: Slot, vector: Tensor, token_rms: Tensor | None) -> None:
        self._passes.setdefault(slot, []).append((vector, token_rms))

    def pass_done(self) -> None:
        """Take what the sites of compiled blocks wrote in the pass just made."""
        for module, keys in self._watched if self.active else ():
            with self.clock.running():
                if hasattr(module, "observe"):
                    for key in keys:
                        row = module.seen[module.names.index(key.name)]
                        self._put(("act", (key,)), row.clone(), None)
                    continue
                fields = len(stats.FIELDS)
                for kind, seen in (("act", module.seen), ("grad", module.leaf.grad)):
                    if kind in self.kinds and seen is not None:
                        self._put((kind, keys), seen[:fields].clone(), seen[fields:].clone())
                module.leaf.grad = None

    def heard(self) -> dict[Slot, tuple[Tensor, Tensor]]:
        """Per slot the statistics of the step's passes together, and the rms of the median token.

        Raises:
            RuntimeError: a hook that should have fired did not.
        """
        absent = [slot for slot in self.expected if slot not in self._passes]
        if absent:
            kind, keys = absent[0]
            raise RuntimeError(
                f"{len(absent)} of {len(self.expected)} sites recorded nothing; the first is "
                f"{kind} at {keys[0].spelt()}"
            )
        return {s: _together(self._passes[s]) for s in self.expected if self._passes[s]}


def _first_tensor(module: nn.Module, output: Any) -> Tensor:
    found = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    if not found:
        raise TypeError(f"{type(module).__name__} returns no tensor, so it is no site to record")
    return found[0]


def _together(parts: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor]:
    vector = parts[0][0]
    if len(parts) > 1:
        vector = stats.merge(torch.stack([v for v, _ in parts])[:, None])[0]
    tokens = [t for _, t in parts if t is not None and len(t)]
    median = torch.cat(tokens).nanquantile(0.5) if tokens else vector.new_tensor(torch.nan)
    return vector, median
