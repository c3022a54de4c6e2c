r"""`record`: the statistics of any model in any training loop.

::

    with stability.record(model, "outputs/mine/run", sites=r"layers\.(\d+)") as recording:
        for x, y in batches:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.log(loss=loss)

It leaves the folder of a run like any other, which `stability.load` and the plot command read.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from stability.config.names import KINDS
from stability.parts.precision import PRECISIONS
from stability.recording.external.options import Options, StepMode
from stability.recording.external.presets import chosen_sites
from stability.recording.external.processes import Processes
from stability.recording.external.recording import Recording
from stability.recording.external.run_writer import RunWriter
from stability.recording.machine import device_name
from stability.results import parquet, schema
from stability.results.run_file import RunFile, now
from stability.results.sinks import SummaryWriter, WandbRun, live_sink_of


class Arguments(TypedDict, total=False):
    """The arguments of `record` that have a name, for those who hand them on."""

    every: int
    ring: int
    kinds: Sequence[str]
    token_dim: int
    each_call: bool
    heads: bool
    steps: StepMode
    loss_scale: Callable[[], float] | None
    label: str | None
    settings: Mapping[str, Any] | None
    seed: int | None
    overwrite: bool
    first_step: int
    also: SummaryWriter | WandbRun | None


def check(arguments: Arguments) -> None:
    """Refuse arguments of `record` that are not legal, before there is a model.

    Raises:
        ValueError, TypeError: see `record`; or there is no such argument.
    """
    given: Mapping[str, Any] = arguments
    if unknown := given.keys() - Arguments.__annotations__.keys():
        raise TypeError(f"stability.record has no argument {', '.join(sorted(unknown))}")
    own = {field.name for field in fields(Options)}
    Options(**{name: value for name, value in given.items() if name in own})
    _plain(arguments.get("settings") or {})
    if (also := arguments.get("also")) is not None:
        live_sink_of(also)


def record(
    model: nn.Module,
    out: str | Path,
    sites: str,
    *,
    every: int = 1,
    ring: int = 0,
    kinds: Sequence[str] = tuple(KINDS),
    token_dim: int = 1,
    each_call: bool = False,
    heads: bool = False,
    steps: StepMode = "updates",
    loss_scale: Callable[[], float] | None = None,
    label: str | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int | None = None,
    overwrite: bool = False,
    first_step: int = 0,
    also: SummaryWriter | WandbRun | None = None,
) -> Recording:
    """Record a model in an external training loop.

    A step ends with an update: when optimizers of the model's parameters have stepped, when a
    gradient scaler has left their step out, or when a loop without an optimizer has changed the
    weights. Its rows describe the forward passes whose gradients the update used: micro-batches
    together, and no validation, no pass of which the loop threw the gradients away. Gradients of
    parameters are measured as backward passes leave them, before clipping, and ``steps`` says what
    clipping did. Where no backward pass came, there is no row of kind ``grad``. The recording never
    changes the training. What cannot be measured is left out with one warning.

    Args:
        model: any module. Record before it is compiled: hooks inside a compiled module do not fire.
            ``fullgraph=True`` allows no hooks: torch refuses to compile a recorded model so.
        out: the run's folder; must not hold a run already.
        sites: ``gpt2``, ``llama``, ``bert``, ``t5``, ``vit``, ``torch``, ``auto``, or a pattern of
            module names, see `sites.matching`.
        every: steps between recordings.
        ring: steps before the first non-finite one that are written as well, whatever ``every``
            says; costs a recording at every step.
        kinds: what to record, see `stability.config.names.KINDS`.
        token_dim: axis of an output that counts tokens: 1 for (batch, token, width), 0 for
            (token, batch, width), -2 for the last but one.
        each_call: of a module that runs several times in a pass, call k is a layer of its own;
            else its calls are merged.
        heads: whether attention logits are also measured for each head: sites ``scores.h0``,
            ``attn_rows.h0`` and so on.
        steps: ``updates``: an update ends a step; ``loop``: only ``recording.step()`` does.
        loss_scale: gives the factor on the loss, for loops that scale it without torch's
            GradScaler; divided out of all gradients. Asked before each forward pass.
        label: the recording's name in figures; by default the folder's name, or with ``settings``
            the model's class. Recordings with the same label and settings are seeds of one thing.
        settings: what else distinguishes the recording, such as ``{"lr": 1e-3}``: columns of the
            tables and lines of figures.
        seed: tells recordings with one label apart.
        overwrite: replace a run that ``out`` holds.
        first_step: number of the first step, where a training is resumed. Above 0 a run that
            ``out`` holds is continued: rows of this step and later ones are written anew.
        also: a ``SummaryWriter`` of TensorBoard or a run of ``wandb.init``, which gets the numbers
            of `results.curated` as they come.

    Returns:
        the `Recording`, which has begun: a context manager; without ``with``, call its ``close``.

    Raises:
        ValueError: an argument is not legal, or no parameter is trained.
        FileExistsError: ``out`` holds a run.
        TypeError: ``model`` is no module, or ``also`` is neither.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: must be a torch.nn.Module, not {type(model).__name__}")
    options = Options(
        every, ring, kinds, token_dim, each_call, heads, steps, loss_scale, first_step
    )
    sink = None if also is None else live_sink_of(also)
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"{type(model).__name__} has no parameter that requires a gradient")
    found = chosen_sites(model, sites)
    plain_settings = _plain(settings or {})
    folder = Path(out)
    _refuse_run(folder, overwrite or first_step > 0)
    processes = Processes.joined(str(folder.resolve()))
    writer = None
    if processes is None or processes.writes:
        config = {
            "choices": {"model": type(model).__name__},
            "label": label or (type(model).__name__ if settings else folder.resolve().name),
            "seed": seed,
            "settings": plain_settings,
            "depth": found.depth,
            "sites": sites,
            "record": {"every": every, "kinds": list(kinds)},
        }
        state = _continued(folder) if first_step else None
        state = state or _open(folder, model)
        format_of = partial(_format, model)
        writer = RunWriter(folder, state, config, every, ring, format_of, first_step)
    return Recording(model, found, options, writer, processes, sink)


def _refuse_run(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds a run, unless it may be overwritten.

    Raises:
        FileExistsError: it does.
    """
    file = folder / schema.RUN_FILE
    if file.exists() and not overwrite and not _is_empty(folder):
        raise FileExistsError(f"{folder} holds a run already; overwrite=True replaces it")


def _is_empty(folder: Path) -> bool:
    """Whether the run in a folder has ended without one recorded step."""
    try:
        state = RunFile.read(folder)
    except (OSError, ValueError, TypeError):
        return False
    return state.status == "failed" and not state.steps_done


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as a config file holds them.

    Raises:
        ValueError: a value is no number, text or truth value.
    """
    if not isinstance(settings, Mapping):
        raise ValueError(f"settings={settings!r}: must be a mapping of names to values")
    for name, value in settings.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | bool):
            raise ValueError(f"settings={{{name!r}: {value!r}}}: must be a number, text or bool")
    return dict(settings)


def _continued(folder: Path) -> RunFile | None:
    """What run.json says of a run that goes on; None if the folder holds none."""
    if not (folder / schema.RUN_FILE).exists():
        return None
    state = RunFile.read(folder)
    state.status = state.outcome = "running"
    state.error = state.finished = None
    state.started, state.pid = now(), os.getpid()
    return state


def _open(folder: Path, model: nn.Module) -> RunFile:
    """Make the run's folder, without a run that it held, and what its run.json says."""
    if (folder / schema.RUN_FILE).exists():
        for name in (schema.RUN_FILE, schema.THEORY_FILE, schema.BATCH_FILE):
            (folder / name).unlink(missing_ok=True)
        for table in schema.TABLES:
            parquet.discard(folder, table)
    folder.mkdir(parents=True, exist_ok=True)
    text = f"{folder.resolve()} {now()} {os.urandom(8).hex()}"
    run = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    state = RunFile.begin(folder, run, {"sha256": None}, {})
    state.parameters = sum(p.numel() for p in model.parameters() if not is_lazy(p))
    state.device = device_name(next(model.parameters()).device)
    return state


def _format(model: nn.Module, autocast: torch.dtype | None) -> tuple[str, torch.dtype]:
    """The format of activations: as the knob ``dtype`` calls it, and as torch does."""
    first = next(p for p in model.parameters() if p.is_floating_point() or p.is_complex())
    param = first.dtype.to_real() if first.is_complex() else first.dtype
    found = autocast or param
    named = {(p.param, p.autocast): name for name, p in PRECISIONS.items()}
    return named.get((param, autocast)) or str(found).removeprefix("torch."), found
