"""A run is claimed by a file, so that two commands on one sweep folder never run the same run.

The file is made with O_EXCL and names host, process and a token; its time of change is the owner's
heartbeat. A claim is stale when its process on this host is dead, when the heart has not beaten
for ``lock_minutes``, or when after seconds it still names nobody: its maker died while it wrote.
(A hard link to a written file would be whole from the start, but not every file system has those.)
Ages are differences between times that the file system itself gave, so that clocks of two machines
need not agree.
"""

import json
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LOCK_FILE = "run.lock"
WRITTEN = 5.0
"""Seconds that writing a claim, or looking at one, may take before its maker counts as dead."""
LOST = 75
"""Exit code of a process whose claim was taken over (EX_TEMPFAIL): it must not write any more."""


class Held(Exception):
    """Somebody else has claimed the run."""


@contextmanager
def claim(folder: Path, minutes: float) -> Iterator[None]:
    """Own a run's folder while the block runs.

    Args:
        folder: made if it does not exist.
        minutes: silence after which another claim counts as abandoned.

    Raises:
        Held: a living owner has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    mine = _take(path, minutes)
    released = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, mine, minutes, released), daemon=True)
    beat.start()
    try:
        yield
    finally:
        released.set()
        beat.join()
        if _read(path) == mine:
            path.unlink(missing_ok=True)


def _take(path: Path, minutes: float) -> dict[str, Any]:
    mine = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": _born(os.getpid()),
        "token": secrets.token_hex(8),
    }
    for _ in range(2):
        with suppress(FileExistsError):
            _write(path, mine)
            return mine
        _clear_if_stale(path, minutes)
    raise Held(_describe(_read(path)))


def _write(path: Path, mine: dict[str, Any]) -> None:
    """Make the claim, which must not be there; a full disk leaves none behind."""
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(mine, file)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _clear_if_stale(path: Path, minutes: float) -> None:
    """Remove an abandoned claim. Only one process at a time looks, so that no fresh one is hit."""
    guard = path.with_name(path.name + ".check")
    try:
        os.close(os.open(guard, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        with suppress(FileNotFoundError):  # its maker looks just now, or died while it looked
            if time.time() - guard.stat().st_mtime > min(60 * minutes, 12 * WRITTEN):
                guard.unlink()
        raise Held(_describe(_read(path))) from None
    try:
        owner, age = _read(path), guard.stat().st_mtime - path.stat().st_mtime
        patience = min(60 * minutes, math.inf if owner else WRITTEN)
        if age <= patience and not _is_dead(owner):
            raise Held(_describe(owner))
        path.unlink()
    except FileNotFoundError:
        pass  # released in the meantime
    finally:
        guard.unlink(missing_ok=True)


def _beat(path: Path, mine: dict[str, Any], minutes: float, released: threading.Event) -> None:
    while not released.wait(min(30.0, 60 * minutes / 4)):
        if _read(path) != mine:
            os._exit(LOST)
        with suppress(FileNotFoundError):
            os.utime(path)


def _read(path: Path) -> dict[str, Any]:
    """The owner; nothing where its file is gone, not written yet or of somebody else's making."""
    try:
        owner = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    whole = isinstance(owner, dict) and {"host", "pid", "born", "token"} <= owner.keys()
    return owner if whole and isinstance(owner["pid"], int) else {}


def _is_dead(owner: dict[str, Any]) -> bool:
    """Whether the owner is a process of this host that no longer lives."""
    if not owner or owner["host"] != socket.gethostname():
        return False
    try:
        os.kill(owner["pid"], 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return bool(_born(owner["pid"]) != owner["born"])


def _born(pid: int) -> str | None:
    """When the process started, in ticks since boot: tells a process from a later namesake."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # no such process, or a system without /proc
        return None
    return None if state == "Z" else rest[18]


def _describe(owner: dict[str, Any]) -> str:
    return f"runs in process {owner['pid']} on {owner['host']}" if owner else "runs elsewhere"
