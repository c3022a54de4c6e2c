"""One run, from its config to its finished folder."""

import logging
import time
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
from stability.model.build import build
from stability.parts.batches import Source
from stability.parts.data import source
from stability.parts.precision import PRECISIONS
from stability.recording.machine import device_name, finfo
from stability.results import schema
from stability.results.atomic import write_text
from stability.results.parquet import Writer, run_metadata
from stability.results.run_file import RunFile, now
from stability.training import failure_replay
from stability.training.failure import Failure
from stability.training.outcome import Outcome
from stability.training.passes import train_batch
from stability.training.step_log import Report, StepLog
from stability.training.trainer import Trainer

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
    # Of this thread and of those that it will start; threads that exist keep what they have, so a
    # run with several threads that flushes is given a process of its own.
    torch.set_flush_denormal(config.flush_subnormal)
    torch.set_num_threads(config.threads)
    folder.mkdir(parents=True, exist_ok=True)
    with logging_to(folder / schema.LOG_FILE):
        info = initial_run_file(config, source(config), folder)
        info.write(folder)
        try:
            outcome = _run(config, info, folder, report, stop)
        except BaseException as error:
            info.fail(error)
            info.write(folder)
            raise
        log.info("%s after %d steps", outcome.text, outcome.steps_done)
        return replace(info, **final_fields(outcome, info.data["unigram_entropy"])).write(folder)


def _run(
    config: Config, info: RunFile, folder: Path, report: Report, stop: Callable[[], bool]
) -> Outcome:
    """Everything between the first and the last run.json."""
    text = yaml.safe_dump(config.plain(), sort_keys=False, allow_unicode=True)
    write_text(folder / schema.CONFIG_FILE, text)
    with table_writers(config, info.run, folder) as writers:
        step_log = StepLog(config, info.run, writers, report)
        outcome, failure = _train(config, info, folder, step_log, stop)
        if failure is not None:
            _find_cause(failure, outcome, config, folder, step_log)
    kept = outcome.status == "completed" and config.train.keep_checkpoint
    if outcome.status != "interrupted" and not kept:
        (folder / schema.CHECKPOINT_FILE).unlink(missing_ok=True)
    return outcome


def _train(
    config: Config, info: RunFile, folder: Path, step_log: StepLog, stop: Callable[[], bool]
) -> tuple[Outcome, Failure | None]:
    """Train the config's model, and let go of it; run.json learns what was built."""
    built = build(config)
    info.parameters = sum(p.numel() for p in built.model.parameters())
    info.device = device_name(built.device)
    info.write(folder)
    _, x_BT, y_BT = train_batch(built, 0)
    np.savez(folder / schema.BATCH_FILE, x=x_BT.cpu().numpy(), y=y_BT.cpu().numpy())
    trainer = Trainer(built, folder, step_log, stop)
    try:
        trainer.resume()
        return trainer.run(), trainer.failure
    finally:
        built.recorder.detach()


def _find_cause(
    failure: Failure, outcome: Outcome, config: Config, folder: Path, step_log: StepLog
) -> None:
    """Name the first non-finite tensor of a run that diverged."""
    began = time.perf_counter()
    found = failure_replay.replay_failure(failure, config, folder, step_log.layers)
    outcome.diverged_at(found, failure.validating)
    outcome.seconds += time.perf_counter() - began


@contextmanager
def table_writers(config: Config, run: str, folder: Path) -> Iterator[dict[str, Writer]]:
    """Writers of the run's tables, closed at the end."""
    metadata = run_metadata(config.plain(), run)
    names = ["layers", "steps", *(["probes"] if config.record.probes else [])]
    writers = {name: Writer(folder, name, metadata) for name in names}
    try:
        yield writers
    finally:
        for writer in writers.values():
            writer.close()


def initial_run_file(config: Config, found: Source, folder: Path) -> RunFile:
    """What run.json says before anything is built."""
    what = identity(config, found.sha256)
    limits = finfo(config.dtype, PRECISIONS[config.dtype].compute)
    return replace(RunFile.begin(folder, digest(what), found.info(), limits), identity=what)


def final_fields(outcome: Outcome, unigram_entropy: float) -> dict[str, Any]:
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
    """Append the log of this package to a file, with the traceback of an error in the block."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    except BaseException:
        log.error("%s", traceback.format_exc())
        raise
    finally:
        log.removeHandler(handler)
        handler.close()
