"""Keeps errors of the recorder away from the training: they end the recording, with a warning."""

import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from stability.results.run_file import one_line

INTERNAL = ("stability.", "torch.", "contextlib")
"""Modules whose lines a warning does not point at."""


class Guard:
    """Runs the code of hooks, times it, and keeps its errors and warnings.

    Args:
        stopped: called when an error has ended the recording.
    """

    def __init__(self, stopped: Callable[[], None]) -> None:
        self._is_active, self._pid = True, os.getpid()
        self.error: Exception | None = None
        """What ended the recording."""
        self.notes: list[str] = []
        """What could not be measured, in words."""
        self._stopped = stopped
        self._seconds = 0.0
        self._nesting = 0

    @property
    def is_own_process(self) -> bool:
        """False in a process that was forked from the one that records."""
        return os.getpid() == self._pid

    @property
    def is_active(self) -> bool:
        """False when the recording has ended: guarded functions do nothing then."""
        return self._is_active and self.is_own_process

    def end(self) -> None:
        """The recording has ended."""
        self._is_active = False

    def __call__(self, function: Callable[..., None]) -> Callable[..., None]:
        """The function, timed; an error in it ends the recording and never the training."""

        @wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> None:
            if not self.is_active:
                return
            self._nesting += 1
            began = time.perf_counter()
            try:
                function(*args, **kwargs)
            except Exception as error:
                self.end()
                self.error = error
                say(f"stopped, and the training goes on: {one_line(error)}")
                self._stopped()
            finally:
                self._nesting -= 1
                if not self._nesting:
                    self._seconds += time.perf_counter() - began

        return guarded

    def note(self, what: str) -> None:
        """Warn of something, once."""
        if what not in self.notes:
            self.notes.append(what)
            say(what)

    def take_seconds(self) -> float:
        """Seconds spent in guarded functions since this was last asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def _level_of_user() -> int:
    """``stacklevel`` of the innermost caller that is neither in this package nor in torch."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(INTERNAL):
        frame, level = frame.f_back, level + 1
    return level


def say(what: str) -> None:
    """Warn. Where warnings are errors, write to stderr: no warning may end a training."""
    try:
        warnings.warn(f"stability.record: {what}", RuntimeWarning, stacklevel=_level_of_user())
    except RuntimeWarning as warning:
        print(warning, file=sys.stderr)
