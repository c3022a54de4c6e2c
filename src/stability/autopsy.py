"""What a run that broke leaves behind: the first bad tensor, its step, and all that it came from.

The failing step is made once more, with its own weights and batch, and recorded in full, whatever
the config records. Where it is the weights that are broken already, the update before broke them,
and that step is the one to look at.
"""

from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from stability import checkpoint
from stability.build import Built, recorder_of
from stability.schema import FAILURE_FILE, KINDS, SITES
from stability.taken import Rows, first_bad

if TYPE_CHECKING:
    from stability.train import Trainer


def spell(found: dict[str, Any]) -> str:
    """A bad tensor in words."""
    return "{kind} at layer {layer}, {sublayer}, {site}".format(**found)


def nowhere(trainer: "Trainer", step: int) -> dict[str, Any]:
    """The place of what is not finite although every tensor is: the loss."""
    head = {"layer": trainer.built.model.depth, "sublayer": "head", "site": "loss", "kind": "act"}
    return {"step": step, **head}


def records_all(built: Built) -> bool:
    """Whether the run records every kind at every site, so that a row shows what comes first."""
    record = built.config["record"]
    return set(record["kinds"]) >= set(KINDS) and set(record["sites"]) >= set(SITES)


def of_step(trainer: "Trainer", step: int, scale: Tensor) -> dict[str, Any]:
    """Examine a step that was not finite, and write what it and the steps before it held.

    Returns:
        Where the first non-finite tensor in the order of execution lies.
    """
    trainer.built.loss_scale.scale.copy_(scale)
    ring, keeps_ring = list(trainer.ring), bool(trainer.ring.maxlen)
    rows = whole(trainer, step, scale)
    found = first_bad(rows)
    _append(trainer, step, rows)
    if found is not None and found["kind"] == "weight" and step > 0:
        return _of_update(trainer, step - 1)
    _keep(trainer, step, *trainer.batch(step))
    for number, taken in ring:
        if number != step:
            trainer.layers.append(trainer.rows(taken, number))
    if not keeps_ring:
        trainer.rewind(step, record=True)
    return found or nowhere(trainer, step)


def of_end(trainer: "Trainer") -> dict[str, Any]:
    """Examine a run whose last weights give no finite validation loss."""
    model, last = trainer.built.model, trainer.updates
    if last and not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        return _of_update(trainer, last - 1)
    model.eval()
    scale = trainer.built.loss_scale.scale.clone()
    for index in range(trainer.train["eval_batches"]):
        batch = trainer.val_batch(index)
        if found := first_bad(_examine(trainer, last, scale, batch, update=False)):
            _keep(trainer, last, *batch)
            return found
    return nowhere(trainer, last)


def _of_update(trainer: "Trainer", step: int) -> dict[str, Any]:
    """Examine the step whose update broke the weights."""
    keeps_ring = bool(trainer.ring.maxlen)
    for number, taken in trainer.ring:
        if number < step:
            trainer.layers.append(trainer.rows(taken, number))
    trainer.rewind(step, record=not keeps_ring)
    _keep(trainer, step, *trainer.batch(step))
    scale = trainer.built.loss_scale.scale.clone()
    rows = _examine(trainer, step, scale, trainer.batch(step), update=True)
    _append(trainer, step, rows)
    return first_bad(rows) or nowhere(trainer, step)


def whole(trainer: "Trainer", step: int, scale: Tensor) -> Rows:
    """Every row of a step but its update, whose weights are still what it started from."""
    return _examine(trainer, step, scale, trainer.batch(step), update=False)


def _examine(
    trainer: "Trainer", step: int, scale: Tensor, batch: tuple[Tensor, Tensor], update: bool
) -> Rows:
    """Make a step's pass once more and record everything; then, if asked, its update."""
    built = trainer.built
    state = [*built.model.buffers(), built.loss_scale.scale]
    kept = [value.clone() for value in state]
    built.loss_scale.scale.copy_(scale)  # by now it may be halved, and then nothing overflows
    recorder = recorder_of(built.config, built.model, all_kinds=True)
    recorder.start()
    trainer.forward_backward(*batch, step, recorder)
    recorder.gradients(float(scale))
    if update:
        before = recorder.snapshot()
        trainer.apply(step, scale)
        recorder.updates(before, None)
    taken = recorder.take()
    recorder.detach()
    for value, old in zip(state, kept, strict=True):
        value.copy_(old)
    return trainer.rows(taken, step)


def _keep(trainer: "Trainer", step: int, x_BT: Tensor, y_BT: Tensor) -> None:
    """Keep what the step started from, for `stability.replay`."""
    state = checkpoint.pack(trainer.built, step, trainer.run_hash)
    checkpoint.save({**state, "x": x_BT, "y": y_BT}, trainer.folder / FAILURE_FILE)


def _append(trainer: "Trainer", step: int, rows: Rows) -> None:
    """Write the rows of a step that it has not written before."""
    if trainer.is_recorded(step):
        record = trainer.built.config["record"]
        pairs = zip(rows["kind"], rows["site"], strict=True)
        new = [k not in record["kinds"] or _elsewhere(k, s, record["sites"]) for k, s in pairs]
        rows = {
            name: column[new] if isinstance(column, np.ndarray) else list(compress(column, new))
            for name, column in rows.items()
        }
    if len(rows["layer"]):
        trainer.layers.append(rows)


def _elsewhere(kind: str, site: str, sites: Sequence[str]) -> bool:
    """Whether a row of an activation or its gradient is of none of the chosen sites."""
    return kind in ("act", "grad") and site not in sites
