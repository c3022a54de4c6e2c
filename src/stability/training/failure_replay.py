"""Finds the first non-finite tensor of a diverged run by making the failing step again.

The failing step is made once more on a model of its own, and recorded in full, whatever the config
records. If it is the weights that are broken already, the update before broke them, and its step is
the one to look at.
"""

import gc
import logging
from collections.abc import Sequence
from itertools import compress
from pathlib import Path

import numpy as np
import torch

from stability.config.knobs import Config, Record
from stability.config.names import KINDS, SITES
from stability.model.build import build
from stability.recording.layer_log import LayerLog
from stability.recording.recorded_step import Rows, first_bad
from stability.results.schema import CHECKPOINT_FILE, FAILURE_FILE
from stability.training import checkpoint
from stability.training.checkpoint import Checkpoint
from stability.training.failure import Failure, FirstBad, loss_place, starting_point, with_batch
from stability.training.passes import Batch, train_batch, val_batch
from stability.training.replayer import Replayer

log = logging.getLogger("stability")


def records_all(config: Config) -> bool:
    """Whether the run records every kind at every site, so that a row shows what comes first."""
    return set(config.record.kinds) >= set(KINDS) and set(config.record.sites) >= set(SITES)


def name_first_bad(failure: Failure, config: Config) -> FirstBad:
    """The first non-finite tensor of a step; writes nothing."""
    found = None
    try:
        if not (records_all(config) and failure.seen):
            replayer = Replayer(build(config))
            replayer.load(failure.saved)
            batch = train_batch(replayer.built, failure.step)
            found = first_bad(replayer.record(batch).rows(step=failure.step))
    except torch.OutOfMemoryError as error:
        log.warning("no memory to repeat step %d: %s", failure.step, error)
    return found or failure.seen or loss_place(config, failure.step)


def replay_failure(failure: Failure, config: Config, folder: Path, layers: LayerLog) -> FirstBad:
    """Repeat what broke; write failure.pt, the failing step's rows, and those before it.

    Steps before the failing one are those of the ring; without a ring, those since the last
    checkpoint or the start are made again. The caller must have freed the trained
    model. If memory still does not suffice, this returns the first non-finite tensor seen while
    training.

    Args:
        failure: of the run.
        config: of the run.
        folder: of the run, with its last checkpoint, if any.
        layers: of the run.

    Returns:
        Where the first non-finite tensor in the order of execution lies.
    """
    if not failure.validating:
        checkpoint.save(failure.saved, folder / FAILURE_FILE)
    gc.collect()  # models and their hooks refer to each other
    found = None
    try:
        replay = FailureReplay(failure, Replayer(build(config)), folder, layers)
        found = replay.replay_final_validation() if failure.validating else replay.replay_step()
    except torch.OutOfMemoryError as error:
        log.warning("no memory to repeat step %d: %s", failure.step, error)
    return found or failure.seen or loss_place(config, failure.step)


class FailureReplay:
    """Repeats the failing step of a run.

    Args:
        failure: of the run.
        replayer: at the weights that step 0 starts from.
        folder: of the run.
        layers: of the run.
    """

    def __init__(
        self, failure: Failure, replayer: Replayer, folder: Path, layers: LayerLog
    ) -> None:
        self.failure, self.replayer, self.folder, self.layers = failure, replayer, folder, layers
        self.built = replayer.built

    def replay_step(self) -> FirstBad | None:
        """The first non-finite tensor of the failing step, or of the update that it suffers from.

        A fault that came by chance may not come again: then None.
        """
        step, broken_by_update = self.failure.step, None
        batch = train_batch(self.built, step)
        if self.failure.weights_broken and step > 0:
            broken_by_update = self._replay_update(step - 1)
        else:
            self._write_steps_before(step)
        self.replayer.load(self.failure.saved)
        found = self._record(batch)
        return broken_by_update or found

    def replay_final_validation(self) -> FirstBad | None:
        """The first non-finite tensor of the validation after the last step."""
        step = self.failure.step
        if self.failure.weights_broken and step > 0:
            return self._replay_update(step - 1)
        self.replayer.load(self.failure.saved)
        self.built.model.eval()
        for index in range(self.built.config.train.eval_batches):
            batch = val_batch(self.built, index, step)
            if found := first_bad(self.replayer.record(batch).rows(step=step)):
                self._save(with_batch(self.failure.saved, batch))
                return found
        return None

    def _replay_update(self, step: int) -> FirstBad | None:
        """The first non-finite tensor of a step whose update broke the weights."""
        self._write_steps_before(step, make_them=True)
        batch = train_batch(self.built, step)
        self._save(starting_point(self.built, step, self.layers.run, batch))
        return self._record(batch, update=True)

    def _write_steps_before(self, end: int, make_them: bool = False) -> None:
        """Write the ring, or make the steps before ``end`` again and write those that lack rows.

        If ``make_them``, the steps are made again in any case.
        """
        self.layers.write_ring(before=end)
        saved = checkpoint.load(self.folder / CHECKPOINT_FILE, self.layers.run)
        first = 0
        # The weights may have been broken already when the last checkpoint was written.
        if saved is not None and saved["step"] <= end:
            first = saved["step"]
            self.replayer.load(saved)
        layers = None if self.layers.has_ring else self.layers
        missing = layers and not all(layers.is_written(step) for step in range(first, end))
        if make_them or missing:
            self.replayer.advance(end, layers)

    def _save(self, saved: Checkpoint) -> None:
        """Keep what a pass started from, for `stability.replay`."""
        checkpoint.save(saved, self.folder / FAILURE_FILE)

    def _record(self, batch: Batch, update: bool = False) -> FirstBad | None:
        """Repeat a step, write the rows that it lacks, and name its first non-finite tensor."""
        rows = self.layers.rows(batch.step, self.replayer.record(batch, update))
        found = first_bad(rows)
        if self.layers.is_written(batch.step):
            rows = _rows_not_recorded(rows, self.built.config.record)
        if len(rows["layer"]):
            self.layers.write(rows)
        return found


def _rows_not_recorded(rows: Rows, record: Record) -> Rows:
    """The rows that the config does not record."""
    pairs = zip(rows["kind"], rows["site"], strict=True)
    new = [
        kind not in record.kinds or _is_unrecorded_site(kind, site, record.sites)
        for kind, site in pairs
    ]
    return {
        name: column[new] if isinstance(column, np.ndarray) else list(compress(column, new))
        for name, column in rows.items()
    }


def _is_unrecorded_site(kind: str, site: str, sites: Sequence[str]) -> bool:
    """Whether a row of an activation or its gradient lies at a site that is not recorded."""
    return kind in ("act", "grad") and site not in sites
