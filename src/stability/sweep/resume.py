"""What a sweep's folder holds already: runs that are finished, that can go on, or that are others.

Decides from ``run.json``, which a run rewrites atomically, and from whether tables are damaged.
`training.checkpoint` holds what a run goes on from.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from stability.config.knobs import Config, ConfigError
from stability.results import atomic, integrity, run_file
from stability.results import parquet as tables
from stability.results.schema import CHECKPOINT_FILE, CONFIG_FILE, RUN_FILE, TABLES
from stability.sweep import lock

Info = dict[str, Any]
"""The content of a run.json."""

MAX_DIFFERENCES = 4
"""Differences named before the rest is counted."""


def read(folder: Path) -> Info | None:
    """The content of run.json; None where there is none or it cannot be read."""
    try:
        return _load(folder)
    except OSError:
        return None


def _load(folder: Path) -> Info | None:
    """The content of run.json; None where there is none or it is damaged.

    Raises:
        OSError: it cannot be read, which says nothing about its content.
    """
    try:
        info = json.loads((folder / RUN_FILE).read_bytes())
        types = [type(info[key]) for key in ("status", "identity", "steps_done")]
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
    return info if types == [str, dict, int] else None


def finished(folder: Path, config: Config) -> Info | None:
    """The content of a run's run.json if nothing is left to do, else None.

    A run is finished when it has diverged or made all steps now asked for, and its tables are not
    torn. A run whose files cannot be read is not finished: it says so itself, when it is started.
    """
    try:
        return _finished(folder, config)
    except OSError:
        return None


def _finished(folder: Path, config: Config) -> Info | None:
    info = _load(folder)
    if info is None or integrity.is_torn(folder):
        return None
    done = info["status"] == "completed" and info["steps_done"] >= config.train.steps
    return info if done or info["status"] == "diverged" else None


def prepare(folder: Path, config: Config) -> Info | None:
    """Delete the rows and the checkpoint of a run whose files are damaged: it starts anew.

    Returns:
        The content of run.json if nothing is left to do, else None.

    Raises:
        OSError: the files cannot be read. Nothing is deleted: the disk may recover.
    """
    if (info := _finished(folder, config)) is not None:
        return info
    if _steps(folder) is None or not integrity.is_whole(folder):
        (folder / CHECKPOINT_FILE).unlink(missing_ok=True)
        for table in TABLES:
            tables.discard(folder, table)
    return None


def mark_ended(folder: Path, status: str, error: str, minutes: float) -> None:
    """Write into run.json how a run ended that died before it could do so itself."""
    with suppress(lock.LockHeld, OSError), lock.claim(folder, minutes):
        info = read(folder)
        if info is None or info["status"] != "running":
            return
        atomic.write_json(folder / RUN_FILE, info | run_file.ending(status, error))


def existing(sweep: Path) -> dict[str, tuple[str, Path]]:
    """The runs in a sweep's folder: hash -> (label, folder)."""
    found = {}
    for path in sorted(sweep.glob("*/")):
        if name := re.fullmatch(r"(?:(.*)_)?([0-9a-f]{8})", path.name):
            found[name[2]] = (name[1] or "", path)
    return found


def refuse_other(identity: Mapping[str, Any], config: Config, folder: Path) -> None:
    """Refuse a folder that holds a run other than the one asked for.

    Raises:
        ConfigError: it does; names what differs.
    """
    constant = config.train.schedule == "constant"
    try:
        info, before = _load(folder), None if constant else _steps(folder)
    except OSError:  # the run says so itself, when it is started
        return
    if info is None:
        return
    there = info["identity"]
    asked = json.loads(json.dumps(identity))
    if there != asked:
        reason = f"{folder} holds another run: {differences(there, asked)}; give another name"
        raise ConfigError("name", config.name, reason)
    now = config.train.steps
    if before not in (None, now):
        reason = f"{folder} ran with {before}, and train.schedule depends on it: give another name"
        raise ConfigError("train.steps", now, reason)


def refuse_links(folder: Path, name: object) -> None:
    """Refuse a run's folder through which files outside it would be written or deleted.

    Raises:
        ConfigError: it is a symbolic link, or holds one.
    """
    for path in (folder, *folder.glob("*")):
        if path.is_symlink():
            raise ConfigError("name", name, f"{path} is a symbolic link; no run writes through it")


def _steps(folder: Path) -> int | None:
    """The steps that a run was last asked for; None where its config is absent or damaged."""
    try:
        steps: int = yaml.safe_load((folder / CONFIG_FILE).read_bytes())["train"]["steps"]
    except (FileNotFoundError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return None
    return steps


def differences(there: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """The keys in which two identities differ, with both values."""
    absent = "(none)"
    changes = [
        f"{key} is {there.get(key, absent)} there, {asked.get(key, absent)} here"
        for key in sorted(there.keys() | asked.keys())
        if there.get(key, absent) != asked.get(key, absent)
    ]
    count = len(changes) - MAX_DIFFERENCES
    more = f" and {count} more" if count > 0 else ""
    return "; ".join(changes[:MAX_DIFFERENCES]) + more
