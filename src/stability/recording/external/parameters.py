"""Statistics of parameters: weights, gradients as backward passes leave them, and updates."""

import gc
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stability.config.names import Key
from stability.recording import stats
from stability.recording.external.measured_step import Clipping
from stability.recording.external.tensors import Unmeasurable, local, own


class Parameters:
    """A model's parameters, and what was measured of them in the current step.

    Args:
        model: may change its parameters at any time: they are looked up in every recorded step.
        key_of: gives the key of a parameter from its dotted name.
        kinds: of ``weight``, ``weight_grad``, ``update`` those to measure.
        note: takes what could not be measured, in words.
        counts_whole: whether this process measures parameters of which every process has a copy.
    """

    def __init__(
        self,
        model: nn.Module,
        key_of: Callable[[str], Key],
        kinds: Collection[str],
        note: Callable[[str], None],
        counts_whole: bool = True,
    ) -> None:
        self.counts_whole = counts_whole
        self.model, self.key_of, self.kinds, self._note = model, key_of, set(kinds), note
        self.vectors: dict[tuple[str, Key], Tensor] = {}
        self._squares: list[tuple[Tensor, Tensor]] = []
        """For each optimizer that stepped: what `Clipping` sums, before and after."""
        self._by_key: dict[Key, nn.Parameter] = {}
        self._ids: set[int] = set()
        self._strangers: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        """Optimizers of other models, each with its number of parameters."""
        self._probe: _Probe | None = None
        self._have_optimizer: bool | None = None
        """Whether an optimizer existed when the weights first changed without its step."""
        self._before: dict[Key, Tensor] = {}
        self._optimizer_of: dict[Key, ref[torch.optim.Optimizer]] = {}
        self._stepped: list[ref[torch.optim.Optimizer]] = []

    def begin(self) -> None:
        """Begin a recorded step."""
        self.vectors, self._squares = {}, []
        self._before, self._stepped = {}, []
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
        if self._strangers.get(optimizer) != len(its):
            self.look_up()  # parameters may have been replaced
            if not self._ids.isdisjoint(its):
                return True
            self._strangers[optimizer] = len(its)
        return False

    def note_gradients(self, with_weights: bool) -> None:
        """Take note of one gradient, and of its weight, to see later what the loop did to them."""
        params = self.model.parameters()
        p = next((p for p in params if p.grad is not None and _has_entries(p.grad)), None)
        self._probe = None if p is None else _Probe.of(p, with_weights)

    def are_cleared(self) -> bool:
        """Whether the loop has set the gradients to zero or None since the last backward pass."""
        return self._probe is not None and self._probe.is_cleared()

    def are_updated_by_loop(self) -> bool:
        """Whether the loop has updated the weights since the last backward pass, by itself.

        Where there is an optimizer for them, a change before its step is none: sharpness-aware
        minimization moves the weights to take the gradient elsewhere.
        """
        has_changed = self._probe is not None and self._probe.has_changed()
        if has_changed and self._have_optimizer is None:
            found = gc.get_objects()
            held = [x for x in found if issubclass(type(x), torch.optim.Optimizer)]
            self._have_optimizer = any(self.are_of(optimizer) for optimizer in held)
        return has_changed and not self._have_optimizer

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

    def are_replaced(self) -> bool:
        """Whether the loop has set another gradient than the one that the backward pass left."""
        if self._probe is None or (grad := self._probe.parameter.grad) is None:
            return False
        return grad is not self._probe.grad

    def before_update(self, optimizer: torch.optim.Optimizer, anew: bool = False) -> None:
        """An optimizer is about to step with the gradients as they are now.

        Args:
            optimizer: that steps.
            anew: whether they count in place of those that backward passes left.
        """
        its = self.of(optimizer)
        if anew:
            self.drop_gradients()
        self._stepped.append(ref(optimizer))
        self._optimizer_of |= dict.fromkeys(its, ref(optimizer))
        self.measure_gradients(its)
        measured = [key for key in its if ("weight_grad", key) in self.vectors]
        grads = {key: self._counted(its[key].grad) for key in measured}
        counted = {key: grad for key, grad in grads.items() if grad is not None}
        if not counted:
            return
        before = torch.stack([self.vectors["weight_grad", key] for key in counted])
        found = [*counted.values()]
        # In at least fp32: a 16-bit norm is rounded, or overflows.
        dtype = reduce(torch.promote_types, {g.dtype for g in found}, torch.float32)
        norms = torch._foreach_norm(found, dtype=dtype)
        square = torch.stack(norms).double().square().sum()
        scale = getattr(optimizer, "grad_scale", None)  # a fused kernel divides it out itself
        square = square if scale is None else square / scale**2
        self._squares.append((stats.square_of(before), square))

    @property
    def clipping(self) -> Clipping:
        """What optimizers got in this step. Waits for the device."""
        return Clipping(*(float(sum(squares)) for squares in zip(*self._squares, strict=True)))

    def _counted(self, tensor: Tensor | None) -> Tensor | None:
        """The entries that this process measures; None if there are none.

        Raises:
            Unmeasurable: see `local`.
        """
        if tensor is None or not (self.counts_whole or isinstance(tensor, DTensor)):
            return None
        mine = local(tensor)
        return mine.values if mine.is_counted else None

    def after_update(self, only: Iterable[Key] | None = None) -> None:
        """Measure what has changed since `keep_weights`."""
        keys = [key for key in (self._before if only is None else only) if key in self._before]
        changes = {}
        for key in keys:
            p, before = self._by_key.get(key), self._before.pop(key)
            if p is not None and (p.shape, p.device) == (before.shape, before.device):
                changes[key] = p.detach() - before
        self._measure("update", changes)

    def drop_gradients_of_others(self) -> None:
        """Forget gradients that belong to an optimizer which made no step, where another did."""
        if not self._stepped:
            return
        for key, optimizer in self._optimizer_of.items():
            if optimizer not in self._stepped:
                self.vectors.pop(("weight_grad", key), None)

    def drop_gradients(self) -> None:
        """Forget the gradients: the loop has thrown them away."""
        self.vectors = {slot: v for slot, v in self.vectors.items() if slot[0] != "weight_grad"}

    def drop_updates(self, only: Iterable[Key] | None = None) -> None:
        """Forget the changes: the update was left out."""
        for key in [*(self._by_key if only is None else only)]:
            self.vectors.pop(("update", key), None)

    @torch.no_grad()
    def _measure(self, kind: str, tensors: Mapping[Key, Tensor]) -> None:
        dense = {}
        unmeasurable: dict[str, list[Key]] = {}
        for key, tensor in tensors.items():
            try:
                values = self._counted(tensor)
            except Unmeasurable as reason:
                unmeasurable.setdefault(str(reason), []).append(key)
                continue
            if values is not None:
                dense[key] = values
        for why, keys in unmeasurable.items():
            more = f" and {len(keys) - 1} more" if keys[1:] else ""
            self._note(f"{keys[0]}{more}: {kind} cannot be measured: {why}")
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
        before, now = self.weight, own(self.parameter)
        return before is not None and not torch.equal(before, now.to(before))


def _has_entries(grad: Tensor) -> bool:
    """Whether this process stores entries of the gradient, in a plain tensor."""
    is_plain = grad.layout is torch.strided and grad.device.type != "meta"
    return is_plain and own(grad).numel() > 0
