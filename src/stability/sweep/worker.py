"""One run in this process: locked, logged, executed; and the loop of a worker process.

A worker gets composed configs through a pipe and needs no Hydra. It answers with pairs of a word
and a value: ``started``, ``report`` (numbers of a step), then one of ``done`` (the content of
run.json), ``held`` (another process has the run's lock) or ``failed`` (the cause in a line; the
worker then ends, and is replaced).
"""

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stability import shell
from stability.config import instantiate
from stability.config.knobs import Config, ConfigError
from stability.results.run_file import one_line
from stability.results.schema import LOG_FILE
from stability.sweep import lock, resume

RUN_STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that ask a run to stop; not Ctrl-C, which a terminal sends to all its processes: the
parent decides."""

GRACE_PERIOD = 20.0
"""Seconds that a run has for its checkpoint after it was asked to stop."""

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker needs to know before its first run."""

    trusted: tuple[Path, ...] = ()
    """Folders of ``--config-dir``, whose modules may be built."""
    device: str | None = None
    """``CUDA_VISIBLE_DEVICES``, where this worker has a GPU of its own."""
    execute: str = "stability.training.job"
    """Module whose ``execute(config, folder, report, stop)`` makes the run."""


def run(config: Config, folder: Path, report: Report, execute: str) -> dict[str, Any]:
    """Execute one run, unless it is finished.

    Returns:
        The content of run.json.

    Raises:
        lock.LockHeld: another process has its lock.
        Exception: what ended the run early.
    """
    shell.allow_deep_stack()
    with lock.claim(folder, config.lock_minutes), _stop_request() as stop:
        if (info := resume.prepare(folder, config)) is not None:
            return info
        module = importlib.import_module(execute)
        result: dict[str, Any] = module.execute(config, folder, report, stop)
        return result


@contextmanager
def _stop_request() -> Iterator[Callable[[], bool]]:
    """A function that the training calls before each step: has a signal asked it to stop?"""
    received: list[int] = []
    handlers = {n: signal.signal(n, lambda n, _: received.append(n)) for n in RUN_STOP_SIGNALS}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in dict.fromkeys(received):
            if callable(handlers[signal.Signals(each)]):  # a launcher's: ends or requeues its job
                signal.raise_signal(each)


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
        preflight.check(config)
    return torch.cuda.device_count()


def check_and_send(pipe: Connection, settings: WorkerSettings, configs: Sequence[Config]) -> None:
    """Main function of a process that checks a grid.

    Sends ``(number of GPUs, None)``, or ``(0, arguments of a ConfigError)``.
    """
    _initialize(settings)
    try:
        pipe.send((check(configs), None))
    except ConfigError as error:
        pipe.send((0, (error.key, error.value, error.reason, traceback.format_exc())))


def serve(pipe: Connection, settings: WorkerSettings) -> None:
    """Main function of a worker process: receives runs and sends answers until the pipe closes."""
    _initialize(settings)

    def send(word: str, value: Any) -> None:
        with suppress(OSError):  # the parent has ended: this run is about to be asked to stop
            pipe.send((word, value))

    while (task := _receive(pipe)) is not None:
        config, folder = task
        send("started", None)
        try:
            with _output_to(folder / LOG_FILE):
                info = run(config, folder, lambda row: send("report", row), settings.execute)
        except lock.LockHeld as held:
            send("held", str(held))
        except BaseException as error:
            send("failed", one_line(error))
            return
        else:
            send("done", info)


def _initialize(settings: WorkerSettings) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shell.end_with_parent(GRACE_PERIOD)
    if settings.device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = settings.device
    for folder in settings.trusted:
        instantiate.trust(folder)


def _receive(pipe: Connection) -> tuple[Config, Path] | None:
    try:
        task: tuple[Config, Path] | None = pipe.recv()
    except EOFError:
        return None
    return task


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Append what the run prints, C libraries included, to its log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    originals = [os.dup(1), os.dup(2)]
    for stream in (1, 2):
        os.dup2(file, stream)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, original in zip((1, 2), originals, strict=True):
            os.dup2(original, stream)
            os.close(original)
        os.close(file)
