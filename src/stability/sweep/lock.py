"""A lock file in a run's folder, so that two commands never execute the same run.

The file is made with O_EXCL and names its owner, who renews its time of change as a heartbeat.
A lock is stale, and another command may take it over, when its owner is a dead process of this
host, when there was no heartbeat for ``lock_minutes``, or when it has named no owner for seconds:
the owner died while it wrote the file. Ages compare times that the file system itself gave, so
clocks of two machines need not agree. Host names must differ between machines.

Why not ``filelock.SoftFileLease`` (tried with 4.3.1): it holds an empty lock file forever. It takes
over by RENAME_EXCHANGE, which NFS refuses, so a dead owner there is never replaced. There a
dead owner is replaced only after the other process has waited for the whole lease, and commands
with different ``lock_minutes`` refuse each other.
"""

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stability.sweep.lock_owner import Owner

LOCK_FILE = "run.lock"
WRITE_TIMEOUT = 5.0
"""Seconds after which a lock file that names no owner is stale."""
GUARD_TIMEOUT = 60.0
"""Seconds after which the guard of a take-over is stale."""
HEARTBEAT = 30.0
"""Seconds between heartbeats, at most."""
LOST = 75
"""Exit code of a process that lost its lock and must not write any more (EX_TEMPFAIL)."""


class LockHeld(Exception):
    """Another process holds the run's lock."""


@contextmanager
def claim(folder: Path, minutes: float) -> Iterator[None]:
    """Hold the lock of a run's folder while the block runs.

    A process that loses its lock meanwhile ends at once, with exit code `LOST`.

    Args:
        folder: made if it does not exist.
        minutes: time without a heartbeat after which another owner counts as gone.

    Raises:
        LockHeld: another owner has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    content = _acquire(path, minutes)
    released = threading.Event()
    heartbeat = threading.Thread(
        target=_keep_alive, args=(path, content, 60 * minutes, released), daemon=True
    )
    heartbeat.start()
    try:
        yield
    finally:
        released.set()
        heartbeat.join()
        with suppress(OSError):
            if path.read_bytes() == content:
                path.unlink()


def is_held(folder: Path, minutes: float) -> bool:
    """Whether a living process holds the lock of a run's folder; removes a stale lock."""
    if not (folder / LOCK_FILE).exists():
        return False
    try:
        _remove_if_stale(folder / LOCK_FILE, 60 * minutes)
    except LockHeld:
        return True
    return False


def _acquire(path: Path, minutes: float) -> bytes:
    """Make the lock file; returns its content."""
    content = Owner.this_process().encode()
    for _ in range(2):
        if _create(path, content):
            return content
        _remove_if_stale(path, 60 * minutes)
    raise _held(path)


def _create(path: Path, content: bytes) -> bool:
    """Make a file, unless it exists already; a full disk leaves none behind."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return True


def _remove_if_stale(path: Path, timeout_s: float) -> None:
    """Remove a stale lock.

    A second file guards this: one process at a time judges and removes, so that none removes a lock
    that was made after its judgement.

    Raises:
        LockHeld: the lock is not stale, cannot be read, or another process is judging it.
    """
    guard = path.with_name(f"{path.name}.check")
    if not _create(guard, b""):
        with suppress(FileNotFoundError):
            if _age(guard) > min(timeout_s, GUARD_TIMEOUT):
                guard.unlink()
        raise _held(path)
    try:
        owner = Owner.decode(path.read_bytes())
        limit_s = timeout_s if owner else min(timeout_s, WRITE_TIMEOUT)
        if _age(path) <= limit_s and not (owner and owner.is_dead()):
            raise _held(path)
        path.unlink()
    except FileNotFoundError:
        pass  # released in the meantime
    except OSError as error:  # the disk's failure: it says nothing of the owner
        raise _held(path) from error
    finally:
        guard.unlink(missing_ok=True)


def _keep_alive(path: Path, content: bytes, timeout_s: float, released: threading.Event) -> None:
    """Renew the lock until it is released; end the process when the lock is lost."""
    interval = min(HEARTBEAT, timeout_s / 4)
    last = time.monotonic()
    while not released.wait(interval):
        try:
            if path.read_bytes() != content:
                os._exit(LOST)
            os.utime(path)
        except FileNotFoundError:
            os._exit(LOST)
        except OSError:  # the disk may recover, but not later than others call this owner dead
            if time.monotonic() - last > timeout_s - interval:
                os._exit(LOST)
        else:
            last = time.monotonic()


def _age(path: Path) -> float:
    """Seconds since a file's time of change, both by the clock of its file system."""
    with tempfile.TemporaryFile(dir=path.parent) as probe:
        return os.fstat(probe.fileno()).st_mtime - path.stat().st_mtime


def _held(path: Path) -> LockHeld:
    try:
        owner = Owner.decode(path.read_bytes())
    except OSError:
        owner = None
    return LockHeld(
        f"runs in process {owner.pid} on {owner.host}"
        if owner
        else "another process holds its lock"
    )
