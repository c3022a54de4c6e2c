"""Where numbers come from, and files that are whole or absent.

Versions, git revision, host and command of a run; atomic writing of its small files.
"""

import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stability


def provenance() -> dict[str, Any]:
    """What a run keeps about the program and the machine that made it."""
    return {
        "versions": versions(),
        "git": git_revision(),
        "command": shlex.join(sys.orig_argv),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


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
