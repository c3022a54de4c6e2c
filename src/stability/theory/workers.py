"""Processes that share the work of a command that reads runs, and end with it, however it ends."""

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from stability import shell
from stability.config import instantiate


@contextmanager
def crew(allow: Sequence[str] = ()) -> Iterator[ProcessPoolExecutor]:
    """A pool with a process for each core, of which nothing is left when the block ends.

    Args:
        allow: modules whose classes a config may name there, beside our own.
    """
    # Matrices of tokens are small: they are slower with more threads than one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    pool = _Crew(None, get_context("spawn"), _enter, (tuple(allow),))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class _Crew(ProcessPoolExecutor):
    """Starts its processes with Ctrl-C blocked, as they inherit it: the parent ends the pool."""

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return super().submit(*args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _enter(allow: tuple[str, ...]) -> None:
    shell.end_with_parent()
    instantiate.allow(*allow)
