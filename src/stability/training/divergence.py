"""What a run that broke leaves behind: the first bad tensor, its step, and all that it came from.

The failing step is made once more, with its own weights and batch, and recorded in full, whatever
the config records. Where it is the weights that are broken already, the update before broke them,
and that step is the one to look at.
"""

from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from stability.config.names import KINDS, SITES, Key
from stability.model.build import Built, recorder_of
from stability.recording.recorded_step import Rows, first_bad
from stability.results.schema import FAILURE_FILE
from stability.training import checkpoint
from stability.training.passes import Passes
from stability.training.step_log import Journal


class Patient(Protocol):
    """What is examined: a training that has stopped."""

    built: Built
    folder: Path
    passes: Passes
    journal: Journal

    def rewind(self, end: int, record: bool) -> None:
        """Make the steps before ``end`` again; write the rows of those not recorded, if asked."""


def spell(found: dict[str, Any]) -> str:
    """A bad tensor in words."""
    return f"{found['kind']} at {Key.of(found)}"


def nowhere(patient: Patient, step: int) -> dict[str, Any]:
    """The place of what is not finite although every tensor is: the loss."""
    head = {"layer": patient.built.model.depth, "sublayer": "head", "site": "loss", "kind": "act"}
    return {"step": step, **head}


def records_all(built: Built) -> bool:
    """Whether the run records every kind at every site, so that a row shows what comes first."""
    record = built.config.record
    return set(record.kinds) >= set(KINDS) and set(record.sites) >= set(SITES)


def of_step(patient: Patient, step: int, scale: Tensor) -> dict[str, Any]:
    """Examine a step that was not finite, and write what it and the steps before it held.

    Returns:
        Where the first non-finite tensor in the order of execution lies.
    """
    patient.built.loss_scale.scale.copy_(scale)
    ring, keeps_ring = list(patient.journal.ring), bool(patient.journal.ring.maxlen)
    rows = whole(patient, step, scale)
    found = first_bad(rows)
    _append(patient, step, rows)
    if found is not None and found["kind"] == "weight" and step > 0:
        return _of_update(patient, step - 1)
    _keep(patient, step, *patient.passes.batch(step))
    for number, taken in ring:
        if number != step:
            patient.journal.layers.append(patient.journal.rows(taken, number))
    if not keeps_ring:
        patient.rewind(step, record=True)
        failure = patient.folder / FAILURE_FILE
        kept = checkpoint.load(failure, patient.journal.run, patient.built.device)
        assert kept is not None
        # A fault that came by chance may not come again.
        patient.built.model.load_state_dict(kept["model"])
        patient.built.loss_scale.load_state_dict(kept["loss_scale"])
    return found or nowhere(patient, step)


def of_end(patient: Patient) -> dict[str, Any]:
    """Examine a run whose last weights give no finite validation loss."""
    model, last = patient.built.model, patient.journal.updates
    if last and not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        return _of_update(patient, last - 1)
    model.eval()
    scale = patient.built.loss_scale.scale.clone()
    for index in range(patient.passes.train.eval_batches):
        batch = patient.passes.val_batch(index)
        if found := first_bad(_examine(patient, last, scale, batch, update=False)):
            _keep(patient, last, *batch)
            return found
    return nowhere(patient, last)


def _of_update(patient: Patient, step: int) -> dict[str, Any]:
    """Examine the step whose update broke the weights."""
    keeps_ring = bool(patient.journal.ring.maxlen)
    for number, taken in patient.journal.ring:
        if number < step:
            patient.journal.layers.append(patient.journal.rows(taken, number))
    patient.rewind(step, record=not keeps_ring)
    _keep(patient, step, *patient.passes.batch(step))
    scale = patient.built.loss_scale.scale.clone()
    rows = _examine(patient, step, scale, patient.passes.batch(step), update=True)
    _append(patient, step, rows)
    return first_bad(rows) or nowhere(patient, step)


def whole(patient: Patient, step: int, scale: Tensor) -> Rows:
    """Every row of a step but its update, whose weights are still what it started from."""
    return _examine(patient, step, scale, patient.passes.batch(step), update=False)


def _examine(
    patient: Patient, step: int, scale: Tensor, batch: tuple[Tensor, Tensor], update: bool
) -> Rows:
    """Make a step's pass once more and record everything; then, if asked, its update."""
    built = patient.built
    state = [*built.model.buffers(), built.loss_scale.scale]
    kept = [value.clone() for value in state]
    built.loss_scale.scale.copy_(scale)  # by now it may be halved, and then nothing overflows
    recorder = recorder_of(built.config, built.model, all_kinds=True)
    recorder.start()
    patient.passes.forward_backward(*batch, step, recorder)
    recorder.gradients(float(scale))
    if update:
        before = recorder.snapshot()
        patient.passes.apply(step, scale)
        recorder.updates(before, None)
    taken = recorder.take()
    recorder.detach()
    for value, old in zip(state, kept, strict=True):
        value.copy_(old)
    return patient.journal.rows(taken, step)


def _keep(patient: Patient, step: int, x_BT: Tensor, y_BT: Tensor) -> None:
    """Keep what the step's pass started from, for `stability.replay`: no optimizer's state."""
    state = checkpoint.pack(patient.built, step, patient.journal.run)
    del state["optimizer"]
    checkpoint.save({**state, "x": x_BT, "y": y_BT}, patient.folder / FAILURE_FILE)


def _append(patient: Patient, step: int, rows: Rows) -> None:
    """Write the rows of a step that it has not written before."""
    if patient.journal.is_recorded(step):
        record = patient.built.config.record
        pairs = zip(rows["kind"], rows["site"], strict=True)
        new = [k not in record.kinds or _elsewhere(k, s, record.sites) for k, s in pairs]
        rows = {
            name: column[new] if isinstance(column, np.ndarray) else list(compress(column, new))
            for name, column in rows.items()
        }
    if len(rows["layer"]):
        patient.journal.layers.append(rows)


def _elsewhere(kind: str, site: str, sites: Sequence[str]) -> bool:
    """Whether a row of an activation or its gradient is of none of the chosen sites."""
    return kind in ("act", "grad") and site not in sites
