"""Where numbers come from: versions, git revision, host and command of a run."""

import os
import platform
import shlex
import socket
import subprocess
import sys
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any


def provenance() -> dict[str, Any]:
    """What a run keeps about the program and the machine that made it."""
    return {
        "versions": versions(),
        "git": git_revision(),
        "command": command(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }


def command() -> str:
    """What was typed; also in a worker process, whose sys.argv is that of its parent."""
    program, package = Path(sys.argv[0]), Path(__file__).parents[1]
    if program.is_relative_to(package):
        parts = program.relative_to(package.parent).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__main__")
        return shlex.join(["python", "-m", module, *sys.argv[1:]])
    return shlex.join([sys.executable, *sys.argv])


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    packages = {name: version(name) for name in ("torch", "numpy", "stability")}
    return {"python": platform.python_version(), **packages}


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
