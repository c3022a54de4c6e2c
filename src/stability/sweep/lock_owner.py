"""The process that owns a lock, and whether it has ended."""

import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Owner:
    """The process that a lock file names."""

    host: str
    pid_namespace: str | None
    """The kernel's name of the namespace that `pid` counts in: containers may share a host name."""
    pid: int
    start_tick: str | None
    """Ticks from boot to the start of the process: a later one with this pid has another."""
    token: str
    """Random: two locks of one process differ."""

    @classmethod
    def this_process(cls) -> Self:
        """This process, with a new token."""
        pid = os.getpid()
        host, token = socket.gethostname(), secrets.token_hex(8)
        return cls(host, _pid_namespace(), pid, _start_tick(pid), token)

    def encode(self) -> bytes:
        """The content of a lock file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> Self | None:
        """The owner that a lock file names; None where its content is torn or not a lock's."""
        try:
            owner = cls(**json.loads(content))
        except (ValueError, TypeError):
            return None
        return owner if isinstance(owner.pid, int) else None

    def is_dead(self) -> bool:
        """Whether this process of this host has ended; False where that cannot be told."""
        if (self.host, self.pid_namespace) != (socket.gethostname(), _pid_namespace()):
            return False
        now = _start_tick(self.pid)
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            pass  # a process of another user
        return None not in (now, self.start_tick) and now != self.start_tick


def _pid_namespace() -> str | None:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # a system without /proc
        return None


def _start_tick(pid: int) -> str | None:
    """When a process started; None where /proc does not tell."""
    proc = Path("/proc")
    try:
        if str((proc / "self").readlink()) != str(os.getpid()):
            return None  # it shows another namespace, where the pid means another process
        state, *rest = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "ended" if state == "Z" else rest[18]
