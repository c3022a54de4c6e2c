r"""The recorder in a training loop that somebody else wrote.

::

    with stability.record(model, "outputs/mine/run", sites=r"layers\.(\d+)") as recording:
        for x, y in batches:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.log(loss=float(loss))

The folder it leaves is a run like any other: `stability.load` and the plot command read it.
"""

import hashlib
import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stability import schema
from stability.atomic import write_json, write_text
from stability.precision import PRECISIONS
from stability.provenance import now, provenance
from stability.recorder import Recorder
from stability.schema import BLOCK, EMBED_LAYER, KINDS, Key
from stability.table import Writer
from stability.taken import Taken, first_bad

OUTSIDE = "outside"
"""Sublayer of parameters that lie in none of the chosen modules."""


def keys_of(model: nn.Module, sites: str) -> tuple[dict[Key, nn.Module], dict[Key, nn.Parameter]]:
    """Sites and parameters of any module, under the keys of the tables.

    A module is a site where the pattern matches the end of its dotted name. The pattern's first
    group is the layer's number; a second group, if any, names the sublayer (else ``block``). The
    site is called ``resid_post``: what the module returns. A parameter belongs to the site it
    lies in.

    Raises:
        ValueError: the pattern matches no module, lacks the group, or matches two under one name.
    """
    pattern = re.compile(rf"(?:^|\.){sites}$")
    if pattern.groups < 1:
        raise ValueError(f"sites={sites}: needs a group for the layer's number")
    places: dict[str, tuple[int, str]] = {}
    found: dict[Key, nn.Module] = {}
    for name, module in model.named_modules():
        if match := pattern.search(name):
            number, *rest = match.groups()
            if not str(number).isdigit():
                raise ValueError(f"sites={sites}: the first group matched {number!r}, no number")
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


class Recording:
    """What `record` hands out: counts steps, and takes numbers only the loop knows."""

    def __init__(
        self, recorder: Recorder, folder: Path, run: str, config: Any, every: int, ring: int
    ) -> None:
        self.recorder, self.run, self.every = recorder, run, every
        self.ring: deque[tuple[int, Taken]] = deque(maxlen=ring)
        self.step = 0
        self.first_bad: dict[str, Any] | None = None
        self.loss_scale: Callable[[], float] = lambda: 1.0
        metadata = {
            "stability.config": json.dumps(config),
            "stability.run": run,
            "stability.format": str(schema.FORMAT),
        }
        self.layers, self.steps = (Writer(folder, n, metadata) for n in ("layers", "steps"))
        self._row: dict[str, Any] = {}
        self._before: list[Tensor] | None = None
        self._began = time.perf_counter()
        recorder.start()

    def log(self, **numbers: float) -> None:
        """Add columns of the steps table (``loss``, ``val_loss``, ``lr``, ...) to the last step.

        Raises:
            KeyError: no such column.
        """
        known = {c.name for c in schema.STEPS}
        for name in numbers:
            if name not in known:
                raise KeyError(f"steps has no column {name}; it has {', '.join(sorted(known))}")
        self._row |= numbers

    def before_update(self) -> None:
        """The gradients are complete: measure them."""
        if self.recorder.active:
            self.recorder.gradients(self.loss_scale(), weight_scale=1.0)
            self._before = self.recorder.snapshot()

    def after_update(self) -> None:
        """The update is made: measure it, and begin the next step."""
        self._finish_row()
        record_s = 0.0
        if self._watched():
            self.recorder.updates(self._before, None)
            self._keep(self.recorder.take())
            record_s = self.recorder.seconds
        now = time.perf_counter()
        self._row = {"run": self.run, "step": self.step, "record_s": record_s}
        self._row["step_s"], self._began = now - self._began, now
        self.step += 1
        if self._watched():
            self.recorder.start()

    def _watched(self) -> bool:
        return self.step % self.every == 0 or bool(self.ring.maxlen)

    def _keep(self, taken: Taken) -> None:
        """Write the step's rows if it is its turn or if it broke; else they wait in the ring."""
        broke = self.first_bad is None and taken.is_bad()
        if self.step % self.every and not broke:
            self.ring.append((self.step, taken))
            return
        rows = taken.rows(run=self.run, step=self.step)
        self.layers.append(rows)
        if broke:
            self.first_bad = first_bad(rows)
            for step, earlier in self.ring:
                self.layers.append(earlier.rows(run=self.run, step=step))
            self.ring.clear()

    def _finish_row(self) -> None:
        if self._row:
            self.steps.append({name: [value] for name, value in self._row.items()})
            self._row = {}

    def close(self) -> None:
        """Write what is left and compact the tables."""
        self._finish_row()
        self.recorder.detach()
        self.layers.close()
        self.steps.close()


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
    """Record a model while somebody else trains it.

    A step ends when an optimizer that holds a parameter of the model makes its step; of several
    such optimizers it is the one that steps first after a forward pass. Parameter gradients are
    measured as that optimizer gets them (after unscaling and clipping, if the loop does them),
    activations' gradients as the backward pass makes them.

    Args:
        model: any module. Record before it is compiled: hooks inside a compiled module do not fire.
        out: the run's folder; must not hold a run already.
        sites: pattern of module names, see `keys_of`.
        every: steps between recordings.
        ring: steps before the first non-finite one that are written as well, whatever ``every``
            says; costs a recording at every step.
        kinds: what to record, see `stability.schema.KINDS`.
        token_dim: axis of an output that counts tokens: 1 for (batch, token, width), 0 for
            (token, batch, width).
        loss_scale: gives the factor on the loss, e.g. ``scaler.get_scale``; divided out of the
            gradients of activations.

    Raises:
        ValueError: the pattern fits nothing, or a kind is unknown.
        FileExistsError: ``out`` holds a run.
        RuntimeError: at the end of a recorded step, if a chosen module did not run.
    """
    if not kinds or set(kinds) - set(KINDS):
        raise ValueError(f"kinds={list(kinds)}: choose from {', '.join(KINDS)}")
    if every < 1 or ring < 0:
        raise ValueError(f"every={every}, ring={ring}: must be >= 1 and >= 0")
    found, weights = keys_of(model, sites)
    folder = Path(out)
    if (folder / schema.RUN_FILE).exists():
        raise FileExistsError(f"{folder} holds a run already")
    folder.mkdir(parents=True, exist_ok=True)
    depth = 1 + max(key.layer for key in found)
    config = {"choices": {"model": type(model).__name__}, "depth": depth, "sites": sites}
    config["dtype"] = _format(model)
    config["record"] = {"every": every, "kinds": list(kinds)}
    run = hashlib.blake2b(f"{folder.resolve()} {now()}".encode(), digest_size=4).hexdigest()
    state = _state(model, run, folder)
    write_text(folder / schema.CONFIG_FILE, yaml.safe_dump(config, sort_keys=False))
    write_json(folder / schema.RUN_FILE, state)
    recorder = Recorder(found, weights, kinds, names=("resid_post",), token_dim=token_dim)
    recording = Recording(recorder, folder, run, config, every, ring)
    recording.loss_scale = loss_scale or recording.loss_scale
    owned = {id(p) for p in model.parameters()}
    hooks = _step_hooks(recording, owned, next(iter(found.values())))
    try:
        yield recording
    except BaseException as error:
        state |= {"status": "failed", "error": f"{type(error).__name__}: {error}".splitlines()[0]}
        raise
    else:
        state |= {"status": "completed"}
    finally:
        for hook in hooks:
            hook.remove()
        recording.close()
        state |= {"outcome": state["status"], "finished": now(), "steps_done": recording.step}
        state |= {"first_bad": recording.first_bad}
        write_json(folder / schema.RUN_FILE, state)


def _step_hooks(recording: Recording, owned: set[int], site: nn.Module) -> list[Any]:
    """Hooks on every optimizer's step.

    Of the steps that optimizers of the model's parameters make, the first after a forward pass ends
    a step of the recording; further optimizers of the same pass do not.
    """
    state = {"passed": False, "stepping": False}

    def passed(*_: Any) -> None:
        state["passed"] = True

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        held = any(id(p) in owned for group in optimizer.param_groups for p in group["params"])
        state["stepping"] = held and state["passed"]
        if state["stepping"]:
            state["passed"] = False
            recording.before_update()

    def after(*_: Any) -> None:
        if state["stepping"]:
            state["stepping"] = False
            recording.after_update()

    return [
        site.register_forward_hook(passed),
        register_optimizer_step_pre_hook(before),
        register_optimizer_step_post_hook(after),
    ]


def _format(model: nn.Module) -> str:
    """The number format of the parameters, as the knob ``dtype`` calls it."""
    dtype = next(model.parameters()).dtype
    names = [n for n, p in PRECISIONS.items() if p.param == dtype and p.autocast is None]
    return names[0] if names else str(dtype).removeprefix("torch.")


def _state(model: nn.Module, run: str, folder: Path) -> dict[str, Any]:
    limits = torch.finfo(next(model.parameters()).dtype)
    return {
        "format": schema.FORMAT,
        "run": run,
        "folder": folder.name,
        "status": "running",
        "outcome": "running",
        "first_bad": None,
        "steps_done": 0,
        "parameters": sum(p.numel() for p in model.parameters()),
        "data": {"sha256": None},
        "finfo": {
            "dtype": _format(model),
            "max": limits.max,
            "tiny": limits.tiny,
            "eps": limits.eps,
        },
        **provenance(),
        "started": now(),
        "finished": None,
        "error": None,
    }
