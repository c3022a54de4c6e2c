"""One run, from its config to its finished folder."""

import json
import logging
import platform
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from stability.results import schema
from stability.results.atomic import write_json, write_text
from stability.results.parquet import Writer
from stability.results.run_file import now, provenance
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
        write_json(folder / schema.RUN_FILE, state)
        try:
            text = yaml.safe_dump(config.plain(), sort_keys=False, allow_unicode=True)
            write_text(folder / schema.CONFIG_FILE, text)
            built = build(config)
            state |= describe(built)
            write_json(folder / schema.RUN_FILE, state)
            outcome = _train(built, folder, state["run"], report, stop)
        except BaseException as error:
            log.error("%s", traceback.format_exc())
            state |= {"status": "failed", "error": one_line(error), "finished": now()}
            state |= {"outcome": f"failed: {one_line(error)}"}
            write_json(folder / schema.RUN_FILE, state)
            raise
        state |= conclude(outcome, state["data"]["unigram_entropy"])
        return write_json(folder / schema.RUN_FILE, state)


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
    metadata = {
        "stability.config": json.dumps(config.plain()),
        "stability.run": run,
        "stability.format": str(schema.FORMAT),
    }
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


def announce(config: Config, found: Source, folder: Path) -> dict[str, Any]:
    """What run.json says before anything is built."""
    what = identity(config, found.sha256)
    return {
        "format": schema.FORMAT,
        "run": digest(what),
        "folder": folder.name,
        "status": "running",
        "outcome": "running",
        "first_bad": None,
        "steps_done": 0,
        "final_loss": None,
        "final_val_loss": None,
        "learned": None,
        "data": found.info(),
        **provenance(),
        "started": now(),
        "finished": None,
        "seconds": None,
        "record_seconds": None,
        "error": None,
        "identity": what,
    }


def describe(built: Built) -> dict[str, Any]:
    """What run.json knows of the model before the first step."""
    limits = torch.finfo(built.precision.compute)
    return {
        "parameters": sum(p.numel() for p in built.model.parameters()),
        "device": device_name(built.device),
        "finfo": {
            "dtype": built.config.dtype,
            "max": limits.max,
            "tiny": limits.tiny,
            "eps": limits.eps,
            "smallest_subnormal": limits.smallest_normal * limits.eps,
        },
    }


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


def one_line(error: BaseException) -> str:
    """An exception in a line: its type and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.machine()}, {torch.get_num_threads()} threads)"


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
