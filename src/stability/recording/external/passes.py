"""Forward passes of a model, the backward passes through them, and what sites show in both.

A gradient belongs to the forward pass that made the tensor, whatever runs in between. So passes
never mix: not those of micro-batches, of a validation, of another loss or of another network.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from stability.config.names import Key
from stability.recording import stats
from stability.recording.external import backward
from stability.recording.external.attention import AttentionHooks
from stability.recording.external.guard import Guard
from stability.recording.external.module_hooks import ModuleHooks, eager
from stability.recording.external.options import Options
from stability.recording.external.tensors import (
    Unmeasurable,
    channels_last,
    has_channels_first,
    local,
    tensors_in,
)

Measured = tuple[Tensor, Tensor | None]
"""A vector of statistics, and the rms of each token where the tensor has tokens."""


class Site(NamedTuple):
    """A place to record: what a module returns, or what it reads."""

    key: Key
    reads: bool = False


@dataclass(eq=False)
class Call:
    """One call of a site's module in a forward pass."""

    key: Key
    order: int
    """Number of the call among all events of the recording: the order of execution."""
    act: Measured | None = None
    grad: Measured | None = None
    grad_order: int = 0
    held: Tensor | None = None
    """Sum of the gradients so far, while another backward pass may add to it."""
    is_image: bool = False
    """Whether its tensor is (batch, channels, positions ...)."""


@dataclass(eq=False)
class Pass:
    """One forward pass, and what backward passes through it brought.

    Args:
        training: whether the model was in training mode.
        measured: whether sites measure in it.
        late: whether it began after the update of the current step: it belongs to a later one.
    """

    training: bool
    measured: bool
    late: bool
    calls: list[Call] = field(default_factory=list)
    times: Counter[Key] = field(default_factory=Counter)
    """How often each site has been called."""
    reached: bool = False
    """Whether a backward pass has come through and added to the gradients of parameters."""
    asked: bool = False
    """Whether ``torch.autograd.grad`` has returned gradients that came through."""
    hidden: dict[nn.Module, deque[int]] = field(default_factory=dict)
    """Calls inside reentrant checkpoints, which are measured when the backward pass repeats them:
    module -> their orders."""


class Listener(Protocol):
    """Who is told of passes."""

    def begin_pass(self, training: bool) -> Pass:
        """A forward pass begins; returns where to keep it."""

    def begin_backward(self) -> None:
        """A backward pass begins."""

    def reach(self, of: Pass) -> None:
        """A backward pass first comes through a forward pass."""

    def end_backward(self) -> None:
        """A backward pass has ended."""


class _Asked:
    """Whether the running backward pass adds to the gradient of any parameter of a model.

    ``backward(inputs=...)`` does, and may not reach the parameter that is nearest to a site.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._task, self._are_reached = model, -1, False

    def are_reached(self) -> bool:
        if (task := backward.running()) != self._task:
            self._task = task
            self._are_reached = backward.reaches_any(self._model.parameters())
        return self._are_reached


class PassHooks:
    """Hooks that tell passes apart and measure them.

    Args:
        model: its calls are the forward passes. Sites that are called outside of one form a pass
            of their own, which a backward pass or an update ends.
        sites: by module.
        attention: modules that compare queries with keys -> layer and sublayer.
        options: ``kinds``, ``token_dim`` and ``each_call``: with it call k of layer l in a pass is
            layer l + k · (1 + the largest layer).
        listener: is told of passes.
        guard: runs every hook.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Mapping[nn.Module, Sequence[Site]],
        attention: Mapping[nn.Module, tuple[int, str]],
        options: Options,
        listener: Listener,
        guard: Guard,
    ) -> None:
        self.model, self.sites = model, dict(sites)
        self.kinds, self.token_dim = set(options.kinds), options.token_dim
        self._listener, self._guard = listener, guard
        keys = [site.key for several in self.sites.values() for site in several]
        self._layers_per_call = 1 + max(key.layer for key in keys) if options.each_call else 0
        self._current: Pass | None = None
        self._loose = False
        """Whether the current pass began at a site, not at the model."""
        self._depth = 0
        self._recent: deque[Pass] = deque(maxlen=8)
        self._in_backward = False
        self._reached: list[Pass] = []
        """Passes that the running backward pass has come to, in its order."""
        self._on_leaves: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        """Hooks on leaves, which keep them beyond the pass: leaf -> pass and handles."""
        self._asked_parameters = _Asked(model)
        self._ticks = 0
        self._silent = set(keys)
        self.without_gradient = 0
        """How often the model ran under ``torch.no_grad``."""
        self.autocast: torch.dtype | None = None
        """The format of autocast in the pass last measured, None without autocast."""
        self._modules = ModuleHooks()
        self._modules.before(model, eager(guard(self._before_model)))
        self._modules.after(model, eager(guard(self._after_model)), always=True)
        self._places = dict(attention) if "act" in self.kinds else {}
        self._attention = AttentionHooks(
            self._places, self._modules, self._is_measuring, options.heads, guard
        )
        for module in self.sites:
            self._modules.after(module, eager(guard(self._after_site)))

    @property
    def silent(self) -> list[Key]:
        """Sites that were not called in any measured pass."""
        return sorted(self._silent)

    def remove(self) -> None:
        """Remove every hook from the modules."""
        self._modules.remove()
        for _, handles in self._on_leaves.values():
            for handle in handles:
                handle.remove()
        self._on_leaves.clear()
        self._attention.reset()

    def tick(self) -> int:
        """The next number in the order of execution."""
        self._ticks += 1
        return self._ticks

    def _before_model(self, module: nn.Module, _: Any) -> None:
        self._depth += 1
        if self._depth > 1 or backward.is_running():
            return
        if not torch.is_grad_enabled():
            self.without_gradient += 1
            return
        if is_transformed():
            ways = "torch.func (vmap, grad, ...), torch.jit.trace or a FakeTensorMode"
            self._guard.note(f"passes under {ways} are left out")
        else:
            self._open(loose=False)

    def _after_model(self, module: nn.Module, _: Any, __: Any, output: Any) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._depth or self._current is None or self._loose:
            return
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                self._follow(self._current, None, tensor)
        self._current = None

    def _open(self, loose: bool) -> Pass:
        self._in_backward, self._reached = False, []  # a backward pass that raised did not end
        self._current, self._loose = self._listener.begin_pass(self.model.training), loose
        self._recent.append(self._current)
        return self._current

    def _pass_of(self, module: nn.Module) -> tuple[Pass, int] | None:
        """The pass that a call belongs to, and its place in the order; None: it is not recorded."""
        if is_transformed():
            return None
        if backward.is_running():  # a checkpoint repeats the forward pass of its block
            if not backward.is_in_python():
                return None  # not reentrant: the pass itself was measured
            for found in (*reversed(self._reached), *self._recent):
                if found.hidden.get(module):
                    return found, found.hidden[module].popleft()
            return None
        if not torch.is_grad_enabled():
            if self._current is not None:
                self._current.hidden.setdefault(module, deque()).append(self.tick())
            return None
        return self._current or self._open(loose=True), self.tick()

    def _is_measuring(self) -> bool:
        """Whether a module that begins now may be measured when it ends."""
        if is_transformed() or not torch.is_grad_enabled():
            return False
        if backward.is_running():
            return any(of.hidden for of in (*self._reached, *self._recent))
        return self._current is None or self._current.measured

    def _after_site(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        belongs = self._pass_of(module)
        if belongs is None or not belongs[0].measured:
            return
        of, order = belongs
        sites = self.sites[module]
        for site in (s for s in sites if s.reads):
            self._add(of, order, site, module, (args, kwargs))
        if module in self._places:
            self._add_logits(of, order, module)
        for site in (s for s in sites if not s.reads):
            self._add(of, order, site, module, output)

    def _add(self, of: Pass, order: int, site: Site, module: nn.Module, shown: Any) -> None:
        """Add what a module read or returned."""
        self._silent.discard(site.key)
        tensor = next(tensors_in(shown), None)
        if tensor is None:
            does = "reads" if site.reads else "returns"
            self._guard.note(f"{site.key}: {type(module).__name__} {does} no tensor of numbers")
            return
        device = tensor.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            self.autocast = torch.get_autocast_dtype(device)
        call = Call(self._key_of_call(of, site.key), order)
        call.is_image = self.token_dim == 1 and has_channels_first(module, tensor)
        if "act" in self.kinds:
            call.act = self._measure(call, tensor)
        of.calls.append(call)
        if tensor.requires_grad:
            self._follow(of, call, tensor)

    def _add_logits(self, of: Pass, order: int, module: nn.Module) -> None:
        """Add what the attention of a module showed of its logits."""
        found = self._attention.seen_by(module)
        if not found:
            what = "compiled, or it calls no scaled_dot_product_attention and no softmax over keys"
            self._guard.note(f"attention logits of {type(module).__name__} are not seen: {what}")
            return
        for name in found[0]:
            key = self._key_of_call(of, Key(*self._places[module], name))
            shown = [vectors[name] for vectors in found if name in vectors]
            of.calls += [Call(key, order, act=(vector, None)) for vector in shown]

    def _key_of_call(self, of: Pass, key: Key) -> Key:
        layer = key.layer + self._layers_per_call * of.times[key]
        of.times[key] += 1
        return key._replace(layer=layer)

    def _follow(self, of: Pass, call: Call | None, tensor: Tensor) -> None:
        """Watch for the gradient of a tensor."""
        leaf, fired = backward.nearest_leaf(tensor), []

        def hook(grad: Tensor) -> None:
            fired.append(True)
            self._on_gradient(of, call, leaf, grad)

        if tensor.is_leaf:
            self._follow_leaf(of, tensor, self._guard(hook))
            return
        tensor.register_hook(self._guard(hook))
        base = tensor._base
        if base is None or base.grad_fn is None or base.numel() != tensor.numel():
            return
        # A change in place takes the hooks of a view off the graph. The node that made its base
        # stays in the graph and receives the same gradient.
        shape, output = tensor.shape, base.output_nr

        def hook_of_base(grads: tuple[Tensor | None, ...]) -> None:
            grad = grads[output]
            if not fired and grad is not None:
                self._on_gradient(of, call, leaf, grad.reshape(shape))

        base.grad_fn.register_prehook(self._guard(hook_of_base))

    def _follow_leaf(self, of: Pass, leaf: Tensor, hook: Callable[..., None]) -> None:
        """Watch a leaf, such as a parameter that a module returns, for this pass alone."""
        earlier, handles = self._on_leaves.get(leaf, (of, []))
        if earlier is not of:
            for handle in handles:
                handle.remove()
            handles = []
        self._on_leaves[leaf] = of, [*handles, leaf.register_hook(hook)]

    def _on_gradient(self, of: Pass, call: Call | None, leaf: Any, grad: Tensor) -> None:
        if not backward.reaches(leaf) and not self._asked_parameters.are_reached():
            of.asked = True
            return
        if not self._in_backward:
            self._in_backward = True
            backward.at_the_end(self._guard(self._end_backward))
            self._listener.begin_backward()
        if of not in self._reached:
            self._reached.append(of)
        if not of.reached:
            self._listener.reach(of)
            of.reached = True
        if call is None or "grad" not in self.kinds:
            return
        call.grad_order = call.grad_order or self.tick()
        total = grad.detach() if call.held is None else call.held + grad.detach()
        if backward.keeps_graph():
            call.held = total.clone() if call.held is None else total
            return
        if call.grad is not None and call.held is None:
            self._guard.note(f"{call.key}: of two backward passes only the last is known")
        call.held, call.grad = None, self._measure(call, total)

    def _end_backward(self) -> None:
        self._in_backward, self._reached = False, []
        self.end_loose_pass()
        self._listener.end_backward()

    def end_loose_pass(self) -> None:
        """What sites show from now on belongs to another pass, unless the model is running."""
        if self._loose:
            self._current, self._loose = None, False

    def finish(self, passes: Sequence[Pass]) -> None:
        """Measure the gradients that were held for further backward passes."""
        for call in (call for of in passes for call in of.calls):
            if call.held is not None:
                call.grad, call.held = self._measure(call, call.held), None

    def _measure(self, call: Call, tensor: Tensor) -> Measured | None:
        try:
            mine = local(tensor)
        except Unmeasurable as reason:
            self._guard.note(f"{call.key}: cannot be measured: {reason}")
            return None
        if not mine.is_counted:
            return None
        x = channels_last(mine.values) if call.is_image and not mine.split else mine.values
        axis = self.token_dim if self.token_dim >= 0 else x.ndim + self.token_dim
        with torch.no_grad():
            if x.ndim <= 2 or not 0 <= axis < x.ndim - 1:
                return stats.measure(x), None
            vector, token_rms = stats.measure_tokens(x, axis)
        if axis in mine.later:
            vector[stats.FIRST_SHARE] = 0.0  # another process holds position 0
        return vector, None if x.ndim - 1 in mine.split else token_rms


def is_transformed() -> bool:
    """Whether torch.func, torch.jit.trace or a FakeTensorMode runs: then no training does."""
    fake = torch._C._TorchDispatchModeKey.FAKE
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or torch._C._get_dispatch_mode(fake) is not None
    )
