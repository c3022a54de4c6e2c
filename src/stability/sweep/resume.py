"""What lies in a sweep's folder already: which runs are done, which may go on, which are others.

Read from ``run.json`` alone, which a run rewrites atomically. The run itself decides what happens
inside its folder; this decides whether it is started.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from stability.config.knobs import Config, ConfigError
from stability.results import atomic, integrity
from stability.results import parquet as tables
from stability.results.schema import CHECKPOINT_FILE, CONFIG_FILE, RUN_FILE, TABLES
from stability.sweep import lock

Info = dict[str, Any]
"""The content of a run.json."""

SHOWN = 4
"""Differences named before the rest is counted."""


def read(folder: Path) -> Info | None:
    """The run's own account, or nothing where none can be read."""
    try:
        info = json.loads((folder / RUN_FILE).read_text())
        types = [type(info[key]) for key in ("status", "identity", "steps_done")]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return info if types == [str, dict, int] else None


def finished(folder: Path, config: Config) -> Info | None:
    """A run's account, where nothing is left to do: it diverged, or made all steps now asked for.

    One whose tables are torn has to be made again.
    """
    info = read(folder)
    if info is None or integrity.is_torn(folder):
        return None
    done = info["status"] == "completed" and info["steps_done"] >= config.train.steps
    return info if done or info["status"] == "diverged" else None


def drop_damage(folder: Path) -> None:
    """Let a run start anew where what it left cannot be read to the end."""
    if _steps(folder) is not None and integrity.is_whole(folder):
        return
    (folder / CHECKPOINT_FILE).unlink(missing_ok=True)
    for table in TABLES:
        tables.discard(folder, table)


def settle(folder: Path, status: str, error: str, minutes: float) -> None:
    """Say in run.json what became of a run that died before it could say so itself."""
    with suppress(lock.Held, OSError), lock.claim(folder, minutes):
        info = read(folder)
        if info is None or info["status"] != "running":
            return
        info |= {
            "status": status,
            "outcome": f"{status}: {error}",
            "error": error,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        atomic.write_json(folder / RUN_FILE, info)


def existing(sweep: Path) -> dict[str, tuple[str, Path]]:
    """Runs in a sweep's folder: hash -> (label, folder)."""
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
    info = read(folder)
    if info is None:
        return
    there = info["identity"]
    asked = json.loads(json.dumps(identity))
    if there != asked:
        raise ConfigError("name", config.name, f"{folder} holds another run: {_list(there, asked)}")
    now = config.train.steps
    if config.train.schedule != "constant" and (before := _steps(folder)) not in (None, now):
        legal = f"{folder} ran with {before}, and train.schedule depends on it: give another name"
        raise ConfigError("train.steps", now, legal)


def refuse_links(folder: Path, name: object) -> None:
    """Refuse a run's folder through which files outside of it would be written or deleted.

    Raises:
        ConfigError: it is a symbolic link, or holds one.
    """
    for path in (folder, *folder.glob("*")):
        if path.is_symlink():
            raise ConfigError("name", name, f"{path} is a symbolic link; no run writes through it")


def _steps(folder: Path) -> int | None:
    """The steps that a run was last asked for; None where its config cannot be read."""
    try:
        steps: int = yaml.safe_load((folder / CONFIG_FILE).read_text())["train"]["steps"]
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return None
    return steps


def _list(there: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    absent = "(none)"
    changes = [
        f"{key} is {there.get(key, absent)} there, {asked.get(key, absent)} here"
        for key in sorted(there.keys() | asked.keys())
        if there.get(key, absent) != asked.get(key, absent)
    ]
    more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
    return "; ".join(changes[:SHOWN]) + more
