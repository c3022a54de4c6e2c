"""One run, from its config to its finished folder."""

import json
import logging
import os
import platform
import shlex
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

import stability
from stability import construct, schema
from stability.build import Built, build
from stability.config import digest, identity
from stability.table import Writer
from stability.train import Outcome, Report, Trainer

log = logging.getLogger("stability")


def execute(
    config: Mapping[str, Any],
    folder: Path,
    report: Report = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run one cell and leave its folder complete.

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
    construct.allow(*config["allow"])
    torch.set_num_threads(config["threads"])
    folder.mkdir(parents=True, exist_ok=True)
    with logging_to(folder / schema.LOG_FILE):
        state: dict[str, Any] = {
            "format": schema.FORMAT,
            "folder": folder.name,
            "status": "running",
        }
        try:
            built = build(config)
            state |= describe(built)
            write_json(folder / schema.RUN_FILE, state)
            text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
            write_text(folder / schema.CONFIG_FILE, text)
            outcome = _train(built, folder, state["run"], report, stop)
        except BaseException as error:
            log.error("%s", traceback.format_exc())
            state |= {"status": "failed", "error": one_line(error), "finished": now()}
            state |= {"outcome": f"failed: {one_line(error)}"}
            write_json(folder / schema.RUN_FILE, state)
            raise
        state |= conclude(outcome, state["data"]["unigram_entropy"])
        write_json(folder / schema.RUN_FILE, state)
    return state


def _train(
    built: Built, folder: Path, run: str, report: Report, stop: Callable[[], bool]
) -> Outcome:
    config = built.config
    x, y = built.source.batch(
        0,
        config["train"]["batch_size"],
        config["model"]["context"],
        config["seed"],
        config["data"]["pad_share"],
    )
    np.savez(folder / schema.BATCH_FILE, x=x, y=y)
    metadata = {
        "stability.config": json.dumps(config),
        "stability.run": run,
        "stability.format": str(schema.FORMAT),
    }
    layers, steps = (Writer(folder, name, metadata) for name in ("layers", "steps"))
    trainer = Trainer(built, run, layers, steps, report, stop)
    try:
        return trainer.run()
    finally:
        built.recorder.detach()
        layers.close()
        steps.close()


def describe(built: Built) -> dict[str, Any]:
    """What run.json knows before the first step."""
    what = identity(built.config, built.source.sha256)
    limits = torch.finfo(built.precision.compute)
    return {
        "run": digest(what),
        "outcome": "running",
        "first_bad": None,
        "steps_done": 0,
        "final_loss": None,
        "final_val_loss": None,
        "learned": None,
        "parameters": sum(p.numel() for p in built.model.parameters()),
        "data": built.source.info(),
        "device": device_name(built.device),
        "finfo": {
            "dtype": built.config["dtype"],
            "max": limits.max,
            "tiny": limits.tiny,
            "eps": limits.eps,
            "smallest_subnormal": limits.smallest_normal * limits.eps,
        },
        "versions": versions(),
        "git": git_revision(),
        "command": shlex.join(sys.orig_argv),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": now(),
        "finished": None,
        "seconds": None,
        "record_seconds": None,
        "error": None,
        "identity": what,
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


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({platform.machine()}, {torch.get_num_threads()} threads)"


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "stability": stability.__version__,
    }


@lru_cache(maxsize=1)
def git_revision() -> dict[str, Any] | None:
    """Revision of the checkout that this code runs from, or None outside of one."""
    here = Path(__file__).parent

    def git(*args: str) -> str:
        done = subprocess.run(
            ["git", *args], cwd=here, capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return {"revision": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new, whatever happens."""
    hidden = path.with_name(f".{path.name}.tmp")
    with hidden.open("w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    hidden.rename(path)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically. A number that is not finite becomes text JSON parsers accept: null."""
    write_text(path, json.dumps(_finite(content), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


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
