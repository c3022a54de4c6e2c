"""Processes that share the work of a command that reads runs, and end when the command ends."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from stability import shell
from stability.config import instantiate

Track = Callable[[Iterable[Any], int], Iterable[Any]]
"""Wraps an iterable of n results to show progress: ``track(results, n)``."""


@contextmanager
def process_pool(allow: Sequence[str] = ()) -> Iterator[ProcessPoolExecutor]:
    """A pool with a process for each core; all of them have ended when the block ends.

    Args:
        allow: modules whose classes a config may name there, beside those of this package.
    """
    # Matrices of tokens are small: they are slower with more threads than one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    pool = _Pool(None, get_context("spawn"), _start_worker, (tuple(allow),))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    """Starts its processes with Ctrl-C blocked, which they inherit: the parent ends the pool."""

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return super().submit(*args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(allow: tuple[str, ...]) -> None:
    shell.end_with_parent()
    instantiate.allow(*allow, option="--allow MODULE")
