"""Statistics of parameters: weights, gradients as backward passes leave them, and updates."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stability.config.names import Key
from stability.recording import stats
from stability.recording.external.passes import Warn
from stability.recording.external.tensors import Unmeasurable, local, own


class Parameters:
    """A model's parameters, and what was measured of them in the current step.

    Args:
        model: may change its parameters at any time: they are looked up in every recorded step.
        key_of: gives the key of a parameter from its dotted name.
        kinds: of ``weight``, ``weight_grad``, ``update`` those to measure.
        warn: takes what could not be measured, in words.
        counts_whole: whether this process measures parameters of which every process has a copy.
    """

    def __init__(
        self,
        model: nn.Module,
        key_of: Callable[[str], Key],
        kinds: Collection[str],
        warn: Warn,
        counts_whole: bool = True,
    ) -> None:
        self.counts_whole = counts_whole
        self.model, self.key_of, self.kinds, self._warn = model, key_of, set(kinds), warn
        self.vectors: dict[tuple[str, Key], Tensor] = {}
        self.clipped_square: Tensor | None = None
        """Sum of squares of the gradients that the optimizers got, where this process counts it."""
        self._by_key: dict[Key, nn.Parameter] = {}
        self._ids: set[int] = set()
        self._strangers: set[tuple[int, int]] = set()
        """Optimizers of other models: id and number of parameters."""
        self._probe: _Probe | None = None
        self._before: dict[Key, Tensor] = {}
        self._optimizer_of: dict[int, int] = {}
        self._stepped: set[int] = set()

    def begin(self) -> None:
        """Begin a recorded step."""
        self.vectors, self.clipped_square = {}, None
        self._before, self._stepped = {}, set()
        self.look_up()
        if "weight" in self.kinds:
            self._measure("weight", self._by_key)

    def look_up(self) -> None:
        """Look the parameters up again: FSDP has others within a pass than outside of it."""
        found = self.model.named_parameters()
        self._by_key = {self.key_of(name): p for name, p in found if p.requires_grad}
        self._ids = {id(p) for p in self._by_key.values()}

    def are_of(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer updates any of them."""
        its = [id(p) for group in optimizer.param_groups for p in group["params"]]
        if not self._ids.isdisjoint(its):
            return True
        if (id(optimizer), len(its)) not in self._strangers:
            self.look_up()  # parameters may have been replaced
            if not self._ids.isdisjoint(its):
                return True
            self._strangers.add((id(optimizer), len(its)))
        return False

    def note_gradients(self, with_weights: bool) -> None:
        """Take note of one gradient, and of its weight, to see later what the loop did to them."""
        params = self.model.parameters()
        p = next((p for p in params if p.grad is not None and _has_entries(p.grad)), None)
        self._probe = None if p is None else _Probe.of(p, with_weights)

    def are_cleared(self) -> bool:
        """Whether the loop has set the gradients to zero or None since the last backward pass."""
        return self._probe is not None and self._probe.is_cleared()

    def have_changed(self) -> bool:
        """Whether the loop has changed the weights since the last backward pass."""
        return self._probe is not None and self._probe.has_changed()

    def of(self, optimizer: torch.optim.Optimizer) -> dict[Key, nn.Parameter]:
        """Those parameters that the optimizer updates."""
        its = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return {key: p for key, p in self._by_key.items() if id(p) in its}

    def measure_gradients(self, only: Iterable[Key] | None = None) -> None:
        """Measure the gradients as they are now, in place of those measured before.

        Args:
            only: of these parameters, and only where nothing was measured yet.
        """
        if "weight_grad" not in self.kinds:
            return
        keys = self._by_key if only is None else only
        grads = {key: self._by_key[key].grad for key in keys}
        wanted = {
            key: grad
            for key, grad in grads.items()
            if grad is not None and (only is None or ("weight_grad", key) not in self.vectors)
        }
        self._measure("weight_grad", wanted)

    def keep_weights(self, only: Iterable[Key] | None = None) -> None:
        """Keep copies of the weights as they are before an update."""
        for key in self._by_key if only is None else only:
            if "update" in self.kinds and key not in self._before:
                self._before[key] = self._by_key[key].detach().clone()

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step with the gradients as they are now."""
        its = self.of(optimizer)
        self._stepped.add(id(optimizer))
        self._optimizer_of |= {id(p): id(optimizer) for p in its.values()}
        self.measure_gradients(its)
        grads = [p.grad for p in its.values() if p.grad is not None]
        try:
            counted = [g for g in map(self._counted, grads) if g is not None and g.numel()]
        except Unmeasurable:
            return
        if counted:
            square = torch.stack(torch._foreach_norm(counted)).double().square().sum()
            scale = getattr(optimizer, "grad_scale", None)  # a fused kernel divides it out itself
            square = square if scale is None else square / scale**2
            past = self.clipped_square
            self.clipped_square = square if past is None else past + square

    def _counted(self, tensor: Tensor) -> Tensor | None:
        """The entries that this process measures; None if another one measures them.

        Raises:
            Unmeasurable: see `local`.
        """
        if not self.counts_whole and not isinstance(tensor, DTensor):
            return None
        mine = local(tensor)
        return mine.values if mine.is_counted else None

    def after_update(self, only: Iterable[Key] | None = None) -> None:
        """Measure what has changed since `keep_weights`."""
        keys = [key for key in (self._before if only is None else only) if key in self._before]
        changes = {}
        for key in keys:
            p, before = self._by_key[key].detach(), self._before.pop(key)
            if p.shape == before.shape:
                changes[key] = p - before
        self._measure("update", changes)

    def drop_gradients_of_others(self) -> None:
        """Forget gradients that belong to an optimizer which made no step, where another did."""
        if not self._stepped:
            return
        for key, p in self._by_key.items():
            if self._optimizer_of.get(id(p), id(p)) not in {*self._stepped, id(p)}:
                self.vectors.pop(("weight_grad", key), None)

    def drop_updates(self) -> None:
        """Forget the changes: the update was left out."""
        self.vectors = {slot: v for slot, v in self.vectors.items() if slot[0] != "update"}

    @torch.no_grad()
    def _measure(self, kind: str, tensors: Mapping[Key, Tensor]) -> None:
        dense = {}
        for key, tensor in tensors.items():
            try:
                values = self._counted(tensor)
            except Unmeasurable as reason:
                self._warn(f"{key}: {kind} cannot be measured: {reason}")
                continue
            if values is not None:
                dense[key] = values
        if dense:
            vectors_NF = stats.measure_many(list(dense.values()))
            self.vectors |= {(kind, k): v for k, v in zip(dense, vectors_NF, strict=True)}


@dataclass(frozen=True)
class _Probe:
    """One parameter, as a backward pass left it."""

    parameter: nn.Parameter
    grad: Tensor
    version: int
    """Counts the changes in place of the gradient."""
    weight: Tensor | None

    @classmethod
    def of(cls, p: nn.Parameter, with_weight: bool) -> "_Probe":
        grad = p.grad
        assert grad is not None
        return cls(p, grad, own(grad)._version, own(p).clone() if with_weight else None)

    def is_cleared(self) -> bool:
        grad = self.parameter.grad
        if grad is None:
            return True
        return own(grad)._version != self.version and not bool(own(grad).any())

    def has_changed(self) -> bool:
        return self.weight is not None and not torch.equal(self.weight, own(self.parameter))


def _has_entries(grad: Tensor) -> bool:
    """Whether this process stores entries of the gradient, in a plain tensor."""
    return grad.layout is torch.strided and own(grad).numel() > 0
