"""Stands at sites, parameters and gradients of any module, and turns what passes into rows.

The recorder is told where to stand by a map {(layer, sublayer, site): module}; it knows nothing of
the GPT or of the training loop. Statistics stay on the device until `Taken.rows` fetches them
all in one copy. Recording never changes the training: it only reads, draws no random number, and
its hooks leave values and gradients as they are.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stability import stats
from stability.norms import recomputing
from stability.schema import KINDS, SITES, Key

Rows = dict[str, Any]
Slot = tuple[str, tuple[Key, ...]]
"""A kind, and the keys that share the tensor: one measurement, a row for each key."""


class Recorder:
    """Records the statistics of one pass at a time.

    Args:
        sites: where activations and their gradients are seen, in the order of execution. A module
            may stand under several keys; it is measured once.
        weights: parameters by key.
        kinds, names: which kinds, and which sites' names, to record.
        token_dim: which axis of an activation counts tokens.
        compiled_tokens: for sites inside compiled blocks, the tokens of one pass. Such sites must
            be `stability.sublayers.Site`; they are prepared here, before the first compiled call.

    Use: ``start()``; forward and backward passes, as many as make one step, ``pass_done()`` after
    each; ``gradients(scale)``; ``before = snapshot()``; the update; ``updates(before, asked)``;
    ``take()``.
    """

    def __init__(
        self,
        sites: Mapping[Key, nn.Module],
        weights: Mapping[Key, nn.Parameter],
        kinds: Sequence[str] = tuple(KINDS),
        names: Sequence[str] = tuple(SITES),
        token_dim: int = 1,
        compiled_tokens: int | None = None,
    ) -> None:
        self.weights = {k: p for k, p in weights.items() if p.requires_grad}
        self.kinds, self.token_dim = set(kinds), token_dim
        self.active, self.seconds = False, 0.0
        self.expected: list[Slot] = []
        self._passes: dict[Slot, list[tuple[Tensor, Tensor | None]]] = {}
        self._tensors: dict[str, Tensor] = {}
        self._lost: Tensor | None = None
        self._scales: dict[str, float] = {}
        self._hooks: list[Any] = []
        self._watched: list[tuple[Any, tuple[Key, ...]]] = []
        self._prepared: list[Any] = []
        self._compiled_tokens = compiled_tokens
        self._place = {place: i for i, place in enumerate(dict.fromkeys(k[:2] for k in sites))}
        self._attach({k: m for k, m in sites.items() if k.name in names})
        self._order = {slot: i for i, slot in enumerate(self.expected)}

    def _attach(self, sites: Mapping[Key, nn.Module]) -> None:
        by_module: dict[nn.Module, list[Key]] = {}
        for key, module in sites.items():
            by_module.setdefault(module, []).append(key)
        for module, keys in by_module.items():
            if not self.kinds & {"act", "grad"}:
                continue
            observable = hasattr(module, "observe")
            groups = [(k,) for k in keys] if observable else [tuple(keys)]
            kinds = ("act",) if observable else ("act", "grad")
            self.expected += [(k, group) for group in groups for k in kinds if k in self.kinds]
            if self._compiled_tokens is not None:
                if module.seen is None:  # else another recorder is here already: share what it has
                    device = next(iter(self.weights.values())).device
                    module.watch(len(stats.FIELDS) + self._compiled_tokens, device)
                    self._prepared.append(module)
                self._watched.append((module, tuple(keys)))
            else:
                hook = self._on_observable if observable else self._on_forward
                self._hooks.append(module.register_forward_hook(partial(hook, tuple(keys))))

    def detach(self) -> None:
        """Remove every hook."""
        for hook in self._hooks:
            hook.remove()
        for module in self._prepared:
            module.seen = module.leaf = None
        self._hooks.clear()
        self._watched.clear()
        self._prepared.clear()

    # Hooks -----------------------------------------------------------------------------------

    def _listens(self) -> bool:
        """Whether the pass belongs to the step: no validation in its midst, no recompute."""
        return self.active and torch.is_grad_enabled() and not recomputing()

    def _on_observable(self, keys: tuple[Key, ...], module: Any, _: Any, output: Any) -> None:
        if not self._listens() or "act" not in self.kinds:
            return
        with self._timed():
            shown = module.observe(output)
            for key in keys:
                self._put(("act", (key,)), stats.measure(shown[key.name]), None)

    def _on_forward(self, keys: tuple[Key, ...], module: Any, _: Any, output: Any) -> None:
        if not self._listens():
            return
        tensor = output if isinstance(output, Tensor) else output[0]
        if "act" in self.kinds:
            self._measure(("act", keys), tensor)
        if "grad" in self.kinds and tensor.requires_grad:
            tensor.register_hook(partial(self._measure, ("grad", keys)))

    def _measure(self, slot: Slot, tensor: Tensor) -> None:
        with self._timed(), torch.no_grad():
            if tensor.ndim > max(self.token_dim, 1) and tensor.ndim > 2:
                self._put(slot, *stats.measure_tokens(tensor, self.token_dim))
            else:
                self._put(slot, stats.measure(tensor), None)

    def _put(self, slot: Slot, vector: Tensor, token_rms: Tensor | None) -> None:
        self._passes.setdefault(slot, []).append((vector, token_rms))

    def pass_done(self) -> None:
        """Take what the sites of compiled blocks wrote in the pass just made."""
        for module, keys in self._watched if self.active else ():
            with self._timed():
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

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    # One step --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a recorded step: everything that runs until `take` belongs to it."""
        self._passes, self._tensors, self._lost = {}, {}, None
        self.seconds, self._scales = 0.0, {}
        self._watch(True)
        if "weight" in self.kinds:
            with self._timed():
                self._tensors["weight"] = stats.measure_many(list(self.weights.values()))

    def _watch(self, active: bool) -> None:
        self.active = active
        for module, _ in self._watched:
            module.watching = active

    def gradients(self, loss_scale: float = 1.0, weight_scale: float | None = None) -> None:
        """Measure the parameters' gradients, after the last backward pass and before clipping.

        Args:
            loss_scale: what the loss was multiplied by; divided out of every gradient.
            weight_scale: what the parameters' gradients still carry of it, where that differs.
        """
        self._watch(False)
        self._scales = {
            "grad": loss_scale,
            "weight_grad": loss_scale if weight_scale is None else weight_scale,
        }
        if "weight_grad" not in self.kinds:
            return
        with self._timed():
            missing = [k for k, p in self.weights.items() if p.grad is None]
            if missing:
                raise RuntimeError(f"no gradient reached {_spell(missing[0])}")
            grads = [p.grad for p in self.weights.values() if p.grad is not None]
            self._tensors["weight_grad"] = stats.measure_many(grads)

    def snapshot(self) -> list[Tensor] | None:
        """The parameters before the update, if updates are recorded."""
        if "update" not in self.kinds:
            return None
        with self._timed():
            return [p.detach().clone() for p in self.weights.values()]

    def updates(self, before: Sequence[Tensor] | None, asked: Sequence[Tensor] | None) -> None:
        """Measure what the step changed, and how many changes it asked for were rounded away.

        A change is lost where the rule asked for a non-zero one and the parameter stayed as it was.
        """
        if before is None:
            return
        with self._timed(), torch.no_grad():
            wide = [stats.widest(p) for p in self.weights.values()]
            moved = [p - stats.widest(old) for p, old in zip(wide, before, strict=True)]
            self._tensors["update"] = stats.measure_many(moved)
            if asked is not None:
                lost = [((a != 0) & (m == 0)).sum() for a, m in zip(asked, moved, strict=True)]
                self._lost = torch.stack(lost)

    def take(self) -> "Taken":
        """The step's numbers, still on the device, in the order of execution.

        Order: weights as the pass found them; activations forward; then, from the head down,
        gradients of activations and of weights; updates.

        Raises:
            RuntimeError: a hook that should have fired did not.
        """
        with self._timed():
            self._assert_complete()
            merged = self._merged()
            vectors = torch.stack([vector for vector, _ in merged.values()])
            medians = torch.stack([median for _, median in merged.values()])
            lost = torch.full_like(medians, -1.0)
            if self._lost is not None:
                lost[-len(self._lost) :] = self._lost.to(lost.dtype)
            numbers = torch.cat((vectors, medians[:, None], lost[:, None]), dim=1)
        return Taken(numbers, list(merged), self._scales, self.seconds)

    def _assert_complete(self) -> None:
        absent = [slot for slot in self.expected if slot not in self._passes]
        if absent:
            kind, keys = absent[0]
            raise RuntimeError(
                f"{len(absent)} of {len(self.expected)} sites recorded nothing; the first is "
                f"{kind} at {_spell(keys[0])}"
            )

    def _merged(self) -> dict[Slot, tuple[Tensor, Tensor]]:
        """One vector, and the rms of the median token, per slot in the order of execution."""
        merged = {}
        for slot in self.expected:
            parts = self._passes[slot]
            vector = parts[0][0]
            if len(parts) > 1:
                vector = stats.merge(torch.stack([v for v, _ in parts])[:, None])[0]
            tokens = [t for _, t in parts if t is not None and len(t)]
            merged[slot] = (vector, torch.cat(tokens).nanquantile(0.5) if tokens else _none(vector))
        for kind, matrix in self._tensors.items():
            for key, vector in zip(self.weights, matrix, strict=True):
                merged[(kind, (key,))] = (vector, _none(vector))
        return {slot: merged[slot] for slot in sorted(merged, key=self._moment)}

    def _moment(self, slot: Slot) -> tuple[int, ...]:
        """When a slot's tensor comes to be: its phase, then its place in the network."""
        kind, keys = slot
        phase = {"weight": 0, "act": 1, "grad": 2, "weight_grad": 2, "update": 3}[kind]
        if phase != 2:
            return (phase, self._order.get(slot, 0))
        # Backward: from the last sublayer to the first, activations before the weights they meet.
        return (
            phase,
            -self._place.get(keys[-1][:2], -1),
            kind == "weight_grad",
            -self._order.get(slot, 0),
        )


def _none(like: Tensor) -> Tensor:
    return like.new_tensor(torch.nan)


def _spell(key: Key) -> str:
    return f"layer {key.layer}, {key.sublayer}, {key.name}"


@dataclass(frozen=True)
class Taken:
    """The numbers of one recorded step: a row for each slot, its fields, median token, lost."""

    numbers: Tensor
    slots: list[Slot]
    scales: Mapping[str, float]
    seconds: float

    def is_bad(self) -> bool:
        """Whether a tensor held a non-finite entry. Waits for the device."""
        return bool((self.numbers[:, stats.NONFINITE] > 0).any())

    def rows(self, **constant: Any) -> Rows:
        """Columns of the layers table. Waits for the device, once.

        Args:
            constant: columns that are the same in every row (run, step).
        """
        slots = [(kind, keys[::-1] if kind == "grad" else keys) for kind, keys in self.slots]
        named = [(kind, key) for kind, keys in slots for key in keys]
        host = self.numbers.cpu().double().numpy().repeat([len(keys) for _, keys in slots], axis=0)
        divisor = np.array([self.scales.get(kind, 1.0) for kind, _ in named])
        columns = stats.columns(host[:, :-2], divisor)
        median, lost = host[:, -2], host[:, -1]
        # Not measured is null, which is not NaN: no entry at all, or a parameter's token axis.
        empty = columns["numel"] == 0
        tokenless = empty | (np.isnan(host[:, stats.FIRST]) & (host[:, stats.SS] >= 0))
        for name, values in columns.items():
            mask = tokenless if name == "first_share" else empty
            if values.dtype == np.float64:
                columns[name] = np.ma.masked_array(values, mask=mask)
        return {
            **{name: [value] * len(named) for name, value in constant.items()},
            "layer": [key.layer for _, key in named],
            "sublayer": [key.sublayer for _, key in named],
            "site": [key.name for _, key in named],
            "kind": [kind for kind, _ in named],
            **columns,
            "token_rms_median": np.ma.masked_array(median / divisor, mask=tokenless),
            "lost": np.ma.masked_array(lost.astype(np.int64), mask=lost < 0),
        }


def first_bad(rows: Rows) -> dict[str, Any] | None:
    """The first row, in the order of execution, that holds a non-finite entry."""
    bad = np.flatnonzero(rows["nonfinite"])
    if not len(bad):
        return None
    return {k: rows[k][bad[0]] for k in ("step", "layer", "sublayer", "site", "kind")}
