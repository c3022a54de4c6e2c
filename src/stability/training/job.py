"""One run, from its config to its finished folder."""

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from stability.config import instantiate
from stability.config.identity import digest, identity
from stability.config.knobs import Config
from stability.model.build import Built, build
from stability.parts.batches import Source
from stability.parts.data import source
from stability.parts.precision import PRECISIONS
from stability.recording.machine import device_name, finfo
from stability.results import schema
from stability.results.atomic import write_text
from stability.results.parquet import Writer, run_metadata
from stability.results.run_file import RunFile, now
from stability.training.step_log import Report
from stability.training.trainer import Outcome, Trainer

log = logging.getLogger("stability")


def execute(
    config: Config,
    folder: Path,
    report: Report = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run one cell, or the rest of it where the folder holds a checkpoint, and finish its folder.

    Args:
        config: resolved config with its ``choices``.
        folder: where the run's files go; made if absent.
        report: called a few times a second with the progress of the training.
        stop: asked before each step whether to break off.

    Returns:
        The content of run.json.

    Raises:
        Exception: whatever ended the run early; run.json then says ``failed`` and why.
    """
    instantiate.allow(*config.allow)
    torch.set_num_threads(config.threads)
    folder.mkdir(parents=True, exist_ok=True)
    with logging_to(folder / schema.LOG_FILE):
        found = source(config)
        state = announce(config, found, folder)
        state.write(folder)
        try:
            text = yaml.safe_dump(config.plain(), sort_keys=False, allow_unicode=True)
            write_text(folder / schema.CONFIG_FILE, text)
            built = build(config)
            state.parameters = sum(p.numel() for p in built.model.parameters())
            state.device = device_name(built.device)
            state.write(folder)
            outcome = _train(built, folder, state.run, report, stop)
        except BaseException as error:
            log.error("%s", traceback.format_exc())
            state.fail(error)
            state.write(folder)
            raise
        return replace(state, **conclude(outcome, state.data["unigram_entropy"])).write(folder)


def _train(
    built: Built, folder: Path, run: str, report: Report, stop: Callable[[], bool]
) -> Outcome:
    config = built.config
    x, y = built.source.batch(
        0,
        config.train.batch_size,
        config.model.context,
        config.seed,
        config.data.pad_share,
    )
    np.savez(folder / schema.BATCH_FILE, x=x, y=y)
    metadata = run_metadata(config.plain(), run)
    names = ["layers", "steps", *(["probes"] if config.record.probes else [])]
    writers = {name: Writer(folder, name, metadata) for name in names}
    trainer = Trainer(built, run, folder, writers, report, stop)
    try:
        trainer.resume()
        return trainer.run()
    finally:
        built.recorder.detach()
        for writer in writers.values():
            writer.close()


def announce(config: Config, found: Source, folder: Path) -> RunFile:
    """What run.json says before anything is built."""
    what = identity(config, found.sha256)
    limits = finfo(config.dtype, PRECISIONS[config.dtype].compute)
    return replace(RunFile.begin(folder, digest(what), found.info(), limits), identity=what)


def conclude(outcome: Outcome, unigram_entropy: float) -> dict[str, Any]:
    """What run.json knows after the last step."""
    learned = None
    if outcome.final_val_loss is not None:
        learned = outcome.final_val_loss < unigram_entropy - schema.LEARNED_MARGIN
    return {
        "status": outcome.status,
        "outcome": outcome.text,
        "first_bad": outcome.first_bad,
        "steps_done": outcome.steps_done,
        "final_loss": outcome.final_loss,
        "final_val_loss": outcome.final_val_loss,
        "learned": learned,
        "seconds": outcome.seconds,
        "record_seconds": outcome.record_seconds,
        "finished": now(),
    }


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send the log of this package to a file, appended."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
