"""One run in this process: claimed, logged, executed; and the loop of a worker process.

A worker gets composed configs through a pipe and needs no Hydra. It answers with pairs of a word
and a value: ``report`` (numbers of a step), then one of ``done`` (the content of run.json),
``held`` (somebody else has claimed it) or ``failed`` (the cause in a line, then it is replaced).
"""

import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stability.config import instantiate
from stability.config.knobs import Config, ConfigError
from stability.results.schema import LOG_FILE
from stability.sweep import lock, resume

STOPS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]
"""Signals that ask a run to stop. Ctrl-C reaches all processes of a terminal; the parent
decides."""

GRACE = 20.0
"""Seconds that a run has for its checkpoint after it was asked to stop."""

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know before its first run."""

    trusted: tuple[Path, ...] = ()
    """Folders of ``--config-dir``, whose modules may be built."""
    device: str | None = None
    """``CUDA_VISIBLE_DEVICES``, where this worker has a GPU of its own."""
    execute: str = "stability.training.job"
    """Module whose ``execute(config, folder, report, stop)`` makes the run."""


def run(config: Config, folder: Path, report: Report, execute: str) -> dict[str, Any]:
    """Execute one run unless another process has it or has finished it meanwhile.

    Raises:
        lock.Held: another process has claimed it.
    """
    with lock.claim(folder, config.lock_minutes), _signals() as stop:
        if (info := resume.finished(folder, config)) is not None:
            return info
        resume.drop_damage(folder)
        module = importlib.import_module(execute)
        result: dict[str, Any] = module.execute(config, folder, report, stop)
        return result


@contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Turn signals into a question that the training asks before each step: must I stop?"""
    came: list[int] = []
    before = {n: signal.signal(n, lambda n, _: came.append(n)) for n in STOPS}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def cause(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split("\n\n")[0].split())
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:300]


def check(configs: Sequence[Config]) -> int:
    """Check what only the classes and the device can tell; imports torch.

    Returns:
        The number of GPUs.

    Raises:
        ConfigError: an option cannot be built, or there is no such device.
    """
    import torch

    from stability.model import preflight

    for config in configs:
        instantiate.allow(*config.allow)
        try:
            preflight.check(config)
        except (RuntimeError, MemoryError, OverflowError) as error:
            model = config.choices["model"]
            raise ConfigError("model", model, f"cannot be built here ({error})") from error
    return torch.cuda.device_count()


def examine(pipe: Connection, setup: Setup, configs: Sequence[Config]) -> None:
    """The life of a process that checks a grid: ``(number of GPUs, None)`` or ``(0, refusal)``."""
    _enter(setup)
    try:
        pipe.send((check(configs), None))
    except ConfigError as error:
        refusal = (error.key, error.value, error.legal, traceback.format_exc())
        pipe.send((0, refusal))


def _enter(setup: Setup) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if setup.device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = setup.device
    for trusted in setup.trusted:
        instantiate.trust(trusted)


def serve(pipe: Connection, setup: Setup) -> None:
    """The life of a worker process: runs come in, answers go out, until the pipe closes."""
    _enter(setup)

    def say(word: str, value: Any) -> None:
        with suppress(OSError):  # the parent is gone: the run is about to be asked to stop
            pipe.send((word, value))

    while (task := _next(pipe)) is not None:
        config, folder = task
        try:
            with _output_to(folder):
                info = run(config, folder, lambda row: say("report", row), setup.execute)
        except lock.Held as held:
            say("held", str(held))
        except BaseException as error:
            say("failed", cause(error))
            return
        else:
            say("done", info)


def _next(pipe: Connection) -> tuple[Config, Path] | None:
    try:
        task: tuple[Config, Path] | None = pipe.recv()
    except EOFError:
        return None
    return task


def _die_with_parent() -> None:
    """End with the process that started the sweep, however it ended; politely first."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


@contextmanager
def _output_to(folder: Path) -> Iterator[None]:
    """What the run prints, C libraries included, goes to its log."""
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    kept = [os.dup(1), os.dup(2)]
    for target in (1, 2):
        os.dup2(log, target)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for target, original in zip((1, 2), kept, strict=True):
            os.dup2(original, target)
            os.close(original)
        os.close(log)
