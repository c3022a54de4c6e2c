r"""`record`: the recorder in an external training loop.

::

    with stability.record(model, "outputs/mine/run", sites=r"layers\.(\d+)") as recording:
        for x, y in batches:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.log(loss=float(loss))

It leaves the folder of a run like any other, which `stability.load` and the plot command read.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stability.config.names import BLOCK, EMBED_LAYER, KINDS, Key
from stability.parts.norms import recomputing
from stability.parts.precision import PRECISIONS
from stability.recording.external_loop import Recording
from stability.recording.machine import device_name, finfo
from stability.recording.recorder import Recorder
from stability.results import schema
from stability.results.atomic import write_text
from stability.results.run_file import RunFile, now

OUTSIDE = "outside"
"""Sublayer of parameters outside all sites."""


def keys_of(model: nn.Module, sites: str) -> tuple[dict[Key, nn.Module], dict[Key, nn.Parameter]]:
    """Sites and parameters of any module, under the keys of the tables.

    A module is a site if the pattern matches the end of its dotted name. The pattern's first group
    is the layer's number; a second group, if any, names the sublayer (else ``block``). The site is
    called ``resid_post``: what the module returns. A parameter belongs to the innermost site that
    contains it.

    Raises:
        ValueError: the pattern matches no module, lacks the group, or matches two under one name.
    """
    try:
        pattern = re.compile(rf"(?:^|\.){sites}$")
    except re.error as error:
        raise ValueError(f"sites={sites}: is not a valid regular expression ({error})") from error
    if pattern.groups < 1:
        raise ValueError(f"sites={sites}: needs a group for the layer's number")
    places: dict[str, tuple[int, str]] = {}
    found: dict[Key, nn.Module] = {}
    for name, module in model.named_modules():
        if match := pattern.search(name):
            number, *rest = match.groups()
            if not str(number).isdigit():
                raise ValueError(
                    f"sites={sites}: the first group matched {number!r}, which is not a number"
                )
            places[name] = (int(number), rest[0] if rest and rest[0] else BLOCK)
            key = Key(*places[name], "resid_post")
            if key in found:
                raise ValueError(f"sites={sites}: matches two modules as layer {number}, {key[1]}")
            found[key] = module
    if not found:
        raise ValueError(f"sites={sites}: matches none of the model's modules")
    weights = {}
    for name, p in model.named_parameters():
        inside = max((m for m in places if name.startswith(f"{m}.")), key=len, default=None)
        layer, sublayer = places[inside] if inside is not None else (EMBED_LAYER, OUTSIDE)
        weights[Key(layer, sublayer, name[len(inside) + 1 :] if inside is not None else name)] = p
    return found, weights


@contextmanager
def record(
    model: nn.Module,
    out: str | Path,
    sites: str,
    every: int = 1,
    ring: int = 0,
    kinds: Sequence[str] = tuple(KINDS),
    token_dim: int = 1,
    loss_scale: Callable[[], float] | None = None,
) -> Iterator[Recording]:
    """Record a model in an external training loop.

    A step ends when an optimizer of the model's parameters makes its step. Of several optimizers
    the first to step after a forward pass ends it, and only the parameters of that one have rows
    of kind ``update``. A step that a gradient scaler leaves out is recognised by the fall of
    ``loss_scale``; it counts as a step, ``skipped``. Parameters' gradients are measured as the
    optimizer gets them (after unscaling and clipping, if the loop does so), activations' gradients
    as the backward pass makes them. Without a gradient (a frozen start, an unused parameter) there
    is no row. A module that is called several times in a pass is one site. Activation
    checkpointing needs ``use_reentrant=False``: the other kind hides the first pass.

    Args:
        model: any module. Record before it is compiled: hooks inside a compiled module do not fire.
        out: the run's folder; must not hold a run already.
        sites: pattern of module names, see `keys_of`.
        every: steps between recordings.
        ring: steps before the first non-finite one that are written as well, whatever ``every``
            says; costs a recording at every step.
        kinds: what to record, see `stability.config.names.KINDS`.
        token_dim: axis of an output that counts tokens: 1 for (batch, token, width), 0 for
            (token, batch, width).
        loss_scale: gives the factor on the loss, e.g. ``scaler.get_scale``; divided out of the
            gradients of activations. Asked before each forward pass.

    Raises:
        ValueError: the pattern matches nothing, a kind is unknown, or no parameter is trained.
        FileExistsError: ``out`` holds a run.
        RuntimeError: at the end of a recorded step, if a chosen module did not run.
    """
    if not kinds or set(kinds) - set(KINDS):
        raise ValueError(f"kinds={list(kinds)}: choose from {', '.join(KINDS)}")
    if every < 1 or ring < 0:
        raise ValueError(f"every={every}, ring={ring}: must be >= 1 and >= 0")
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"{type(model).__name__} has no parameter that requires a gradient")
    found, weights = keys_of(model, sites)
    config = {
        "choices": {"model": type(model).__name__},
        "depth": 1 + max(key.layer for key in found),
        "sites": sites,
        "dtype": _format_name(next(model.parameters()).dtype),
        "record": {"every": every, "kinds": list(kinds)},
    }
    folder = Path(out)
    state = _open(folder, model, config)
    recorder = Recorder(found, weights, kinds, ("resid_post",), token_dim, external_loop=True)
    scale = loss_scale or (lambda: 1.0)
    recording = Recording(recorder, folder, state.run, config, every, ring, scale)
    hooks = _StepHooks(recording, model, next(iter(found.values())))
    with _concluded(recording, folder, state, hooks):
        yield recording


def _open(folder: Path, model: nn.Module, config: dict[str, Any]) -> RunFile:
    """Make the run's folder, its config.yaml and its run.json."""
    if (folder / schema.RUN_FILE).exists():
        raise FileExistsError(f"{folder} holds a run already")
    folder.mkdir(parents=True, exist_ok=True)
    run = hashlib.blake2b(f"{folder.resolve()} {now()}".encode(), digest_size=4).hexdigest()
    write_text(folder / schema.CONFIG_FILE, yaml.safe_dump(config, sort_keys=False))
    first = next(model.parameters())
    state = RunFile.begin(folder, run, {"sha256": None}, finfo(config["dtype"], first.dtype))
    state.parameters = sum(p.numel() for p in model.parameters())
    state.device = device_name(first.device)
    state.write(folder)
    return state


@contextmanager
def _concluded(
    recording: Recording, folder: Path, state: RunFile, hooks: "_StepHooks"
) -> Iterator[None]:
    """Remove the hooks at the end, and write to run.json how the loop ended."""
    began = time.perf_counter()
    try:
        yield
    except BaseException as error:
        state.fail(error)
        raise
    else:
        state.status = state.outcome = "completed"
        state.finished = now()
    finally:
        hooks.remove()
        recording.close()
        state.steps_done, state.first_bad = recording.step, recording.first_bad
        state.seconds = time.perf_counter() - began
        state.record_seconds = recording.record_seconds
        state.write(folder)


class _StepHooks:
    """Hooks that tell a recording of passes and updates: on the first site and every optimizer.

    The first optimizer of the model's parameters that steps after a forward pass ends a step of the
    recording; further optimizers of the same pass do not.
    """

    def __init__(self, recording: Recording, model: nn.Module, site: nn.Module) -> None:
        self._recording = recording
        self._parameters = {id(p) for p in model.parameters()}
        self._has_passed = False
        """Whether a forward pass was made since the last step."""
        self._is_update = False
        """Whether the optimizer that steps now makes the update of the step."""
        self._handles: list[Any] = [
            site.register_forward_pre_hook(self._before_pass),
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before_pass(self, *_: Any) -> None:
        if torch.is_grad_enabled() and not recomputing():
            self._recording.before_pass()
            self._has_passed = True

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._is_update = self._has_passed and bool(self._parameters & _parameters_of(optimizer))
        if not self._is_update:
            return
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError("LBFGS makes passes inside its step, which cannot be recorded")
        self._has_passed = False
        self._recording.before_update()

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._is_update:
            self._is_update = False
            self._recording.after_update(_parameters_of(optimizer))


def _parameters_of(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _format_name(dtype: torch.dtype) -> str:
    """A number format as the knob ``dtype`` calls it."""
    names = [n for n, p in PRECISIONS.items() if p.param == dtype and p.autocast is None]
    return names[0] if names else str(dtype).removeprefix("torch.")
