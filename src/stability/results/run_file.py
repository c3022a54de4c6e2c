"""run.json: what a run says of itself. `RunFile` states every field; all writers fill this one."""

import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stability.results.atomic import write_json
from stability.results.schema import FORMAT, LEARNED_MARGIN, RUN_FILE, STATUSES
from stability.shell import package_version


def described(doc: str, default: Any = None) -> Any:
    """A field with its meaning; it is null until it is known, and where it does not apply."""
    return field(default=default, metadata={"doc": doc})


@dataclass(kw_only=True)
class RunFile:
    """The content of run.json: the same fields for a run of a sweep and for an external loop."""

    format: int = described("version of the layout on disk", FORMAT)
    run: str = field(metadata={"doc": "hash of the run's identity"})
    folder: str = field(metadata={"doc": "name of the run's folder"})
    status: str = described(f"one of {', '.join(STATUSES)}", "running")
    outcome: str = described("how the run ended, in words", "running")
    first_bad: dict[str, Any] | None = described(
        "first non-finite tensor in the order of execution: step, layer, sublayer, site, kind"
    )
    steps_done: int = described("training steps made, including those whose update was skipped", 0)
    final_loss: float | None = described("training loss of the last step's batch, nats per token")
    final_val_loss: float | None = described("validation loss of the final weights, nats per token")
    learned: bool | None = described(
        f"whether final_val_loss is over {LEARNED_MARGIN} nats below the data's unigram entropy"
    )
    data: Mapping[str, Any] = field(
        metadata={"doc": "hash, vocabulary, number of tokens and entropies in nats of the data"}
    )
    versions: dict[str, str] | None = described("versions of Python, torch, NumPy and this package")
    git: dict[str, Any] | None = described("revision of the checkout, and whether it was dirty")
    command: str | None = described("what was typed")
    host: str | None = described("name of the machine")
    pid: int | None = described("process that made the run")
    started: str | None = described("UTC time at which the run, or the rest of it, began")
    finished: str | None = described("UTC time of its end")
    seconds: float | None = described("seconds of training, resumed parts included")
    record_seconds: float | None = described("seconds of these spent on recording")
    error: str | None = described("what ended a failed run, in one line")
    notes: list[str] | None = described("what a recording could not measure, in words")
    identity: dict[str, Any] | None = described("everything that the hash is made of")
    parameters: int | None = described("number of the model's parameters")
    device: str | None = described("device that the model was on")
    finfo: dict[str, Any] | None = described(
        "number format: dtype, max, tiny (smallest normal number), eps, smallest_subnormal"
    )

    @classmethod
    def begin(
        cls, folder: Path, run: str, data: Mapping[str, Any], finfo: dict[str, Any]
    ) -> "RunFile":
        """Fields known before the first step: data, versions, git, command, host."""
        return cls(
            run=run,
            folder=folder.name,
            data=data,
            finfo=finfo,
            versions=versions(),
            git=git_revision(),
            command=command(),
            host=socket.gethostname(),
            pid=os.getpid(),
            started=now(),
        )

    @classmethod
    def read(cls, folder: Path) -> "RunFile":
        """Read run.json of a folder.

        Raises:
            OSError, ValueError, TypeError: there is none, it is no JSON, or it lacks a field.
        """
        held = json.loads((folder / RUN_FILE).read_text())
        return cls(**{f.name: held[f.name] for f in fields(cls) if f.name in held})

    def fail(self, error: BaseException, status: str = "failed") -> None:
        """The run ends with an exception."""
        for name, value in ending(status, one_line(error)).items():
            setattr(self, name, value)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write run.json whole; returns what it holds."""
        return write_json(folder / RUN_FILE, asdict(self))


def ending(status: str, error: str) -> dict[str, str]:
    """The fields that tell of a run's end by an error or from outside."""
    return {
        "status": status,
        "outcome": f"{status}: {error}",
        "error": error,
        "finished": now(),
    }


def one_line(error: BaseException) -> str:
    """An exception in one line: its type and the first paragraph of its message."""
    text = " ".join(str(error).split("\n\n")[0].split())
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:300]


def now() -> str:
    """UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def command() -> str:
    """What was typed; also in a worker process, whose sys.argv is that of its parent."""
    program, package = Path(sys.argv[0]), Path(__file__).parents[1]
    if program.is_relative_to(package):
        parts = program.relative_to(package.parent).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__main__")
        return shlex.join(["python", "-m", module, *sys.argv[1:]])
    return shlex.join([sys.executable, *sys.argv])


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    packages = {name: version(name) for name in ("torch", "numpy")}
    return {"python": platform.python_version(), **packages, "stability": package_version()}


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
