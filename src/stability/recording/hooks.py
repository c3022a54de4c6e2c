"""Hooks at the sites of any module: they measure what passes there, in both directions.

Eager modules get forward hooks, and each output that carries a gradient a hook of its own. Hooks do
not fire inside compiled blocks: sites there measure themselves (`Site.prepare`) and are read after
each pass. Statistics stay on the device. The hooks on a model in an external loop, which must tell
passes apart by themselves, are in `recording.external.passes`.
"""

import math
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stability.config.names import Key
from stability.parts.norms import recomputing
from stability.recording import stats
from stability.recording.recorded_step import Slot
from stability.recording.sites import ScoresSite
from stability.results.statistics import FIELDS


class Stopwatch:
    """Adds up the seconds that the host spends in its ``with`` blocks, which are not nested."""

    def __init__(self) -> None:
        self.seconds = self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


class SiteHooks:
    """Measures activations and their gradients from `start` to `stop`.

    Args:
        sites: in the order of execution. A module under several keys is measured once, and its slot
            holds all of them.
        kinds: of ``act`` and ``grad`` those to measure; other kinds are ignored.
        token_dim: which axis of an activation counts tokens.
        compiled: for sites inside compiled blocks, which are prepared here: the tokens of one pass
            and the device.
        clock: runs while something is measured.
    """

    def __init__(
        self,
        sites: Mapping[Key, nn.Module],
        kinds: set[str],
        token_dim: int,
        compiled: tuple[int, torch.device] | None,
        clock: Stopwatch,
    ) -> None:
        self.kinds, self.token_dim, self.clock = kinds & {"act", "grad"}, token_dim, clock
        self.expected: list[Slot] = []
        """Slots of a step, in the order in which the forward pass meets them."""
        self._active = False
        self._padding: Tensor | None = None
        self._passes: dict[Slot, list[tuple[Tensor, Tensor | None]]] = {}
        self._handles: list[Any] = []
        self._compiled: list[tuple[Any, tuple[Key, ...]]] = []
        self._prepared: list[Any] = []
        by_module: dict[nn.Module, list[Key]] = {}
        for key, module in sites.items() if self.kinds else ():
            by_module.setdefault(module, []).append(key)
        for module, keys in by_module.items():
            self._attach(module, tuple(keys), compiled)

    def _attach(
        self, module: Any, keys: tuple[Key, ...], compiled: tuple[int, torch.device] | None
    ) -> None:
        observable = isinstance(module, ScoresSite)
        groups = [(k,) for k in keys] if observable else [keys]
        kinds = ("act",) if observable else ("act", "grad")
        self.expected += [(k, group) for group in groups for k in kinds if k in self.kinds]
        if compiled is None:
            hook = self._on_observable if observable else self._on_forward
            self._handles.append(module.register_forward_hook(partial(hook, keys)))
            return
        if module.measured is None:  # else another recorder has prepared it: share what it measures
            tokens, device = compiled
            module.prepare(tokens, device)
            self._prepared.append(module)
        self._compiled.append((module, keys))

    def detach(self) -> None:
        """Leave the sites as they were."""
        for handle in self._handles:
            handle.remove()
        for module in self._prepared:
            module.measured = module.leaf = None
        self._handles.clear()
        self._compiled.clear()
        self._prepared.clear()

    def start(self) -> None:
        """Begin a step and forget the one before."""
        self._passes, self._padding = {}, None
        self._switch(True)

    def pass_has_padding(self, padding: Tensor) -> None:
        """Leave the padding of the coming pass out of medians over tokens."""
        self._padding = padding.flatten()

    def stop(self) -> None:
        """End the step's passes: what runs from now on is not measured."""
        self._switch(False)

    def _switch(self, active: bool) -> None:
        self._active = active
        for module, _ in self._compiled:
            module.recording = active

    def _is_pass_of_the_step(self) -> bool:
        """False in a validation in the middle of a step, and where a block is recomputed."""
        return self._active and torch.is_grad_enabled() and not recomputing()

    def _on_observable(self, keys: tuple[Key, ...], module: Any, _: Any, output: Any) -> None:
        if not self._is_pass_of_the_step() or "act" not in self.kinds:
            return
        with self.clock:
            shown = module.observe(output)
            for key in keys:
                self._add(("act", (key,)), stats.measure(shown[key.name]), None)

    def _on_forward(self, keys: tuple[Key, ...], module: Any, _: Any, output: Tensor) -> None:
        if not self._is_pass_of_the_step():
            return
        if "act" in self.kinds:
            self._measure(("act", keys), output)
        if "grad" in self.kinds:
            output.register_hook(partial(self._measure, ("grad", keys)))

    def _measure(self, slot: Slot, tensor: Tensor) -> None:
        with self.clock:
            if tensor.ndim > max(self.token_dim, 2):
                self._add(slot, *stats.measure_tokens(tensor, self.token_dim))
            else:
                self._add(slot, stats.measure(tensor), None)

    def _add(self, slot: Slot, vector: Tensor, token_rms: Tensor | None) -> None:
        if token_rms is not None and self._padding is not None:
            token_rms = token_rms.masked_fill(self._padding, math.nan)
        self._passes.setdefault(slot, []).append((vector, token_rms))

    def pass_done(self) -> None:
        """Read what the sites of compiled blocks measured in the pass just made."""
        for module, keys in self._compiled if self._active else ():
            with self.clock:
                if isinstance(module, ScoresSite) and module.measured is not None:
                    for key in keys:
                        row = module.measured[module.names.index(key.name)]
                        self._add(("act", (key,)), row.clone(), None)
                    continue
                n = len(FIELDS)
                for kind, found in (("act", module.measured), ("grad", module.leaf.grad)):
                    if kind in self.kinds and found is not None:
                        self._add((kind, keys), found[:n].clone(), found[n:].clone())
                module.leaf.grad = None

    def statistics(self) -> Tensor:
        """For each slot of `expected` the vector of the step's passes together, (slots, fields).

        Raises:
            RuntimeError: a hook that should have fired did not.
        """
        absent = [slot for slot in self.expected if slot not in self._passes]
        if absent:
            kind, keys = absent[0]
            raise RuntimeError(
                f"{len(absent)} of {len(self.expected)} sites recorded nothing; the first is "
                f"{kind} at {keys[0]}"
            )
        return stats.merge_all([self._passes[slot] for slot in self.expected])
