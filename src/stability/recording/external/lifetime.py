"""The end of a program: a recording is closed at any exit, and at SIGTERM."""

import atexit
import builtins
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any


class Terminated(Exception):
    """The program was told to end."""


def _uncaught() -> BaseException | None:
    """The exception that ended the program, if one did.

    Python keeps it in ``sys.last_value``. An interactive session keeps there what some line raised
    without an end.
    """
    is_interactive = hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")
    return None if is_interactive else getattr(sys, "last_value", None)


class AtExit:
    """Calls a function when the program ends, or is terminated.

    A program's own handler of SIGTERM is left alone. Forked processes, such as those of a data
    loader, do not call the function.

    Args:
        close: is given the reason, or None at an ordinary exit.
    """

    def __init__(self, close: Callable[[BaseException | None], None]) -> None:
        self._close, self._pid = close, os.getpid()
        self._is_handling = False
        atexit.register(self._exit)
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)
            self._is_handling = True

    def _exit(self) -> None:
        if os.getpid() == self._pid:
            self._close(_uncaught())

    def _terminate(self, number: int, _: Any) -> None:
        self.remove()
        if os.getpid() == self._pid:
            self._close(Terminated("SIGTERM"))
        os.kill(os.getpid(), number)

    def remove(self) -> None:
        """Leave the program as it was."""
        atexit.unregister(self._exit)
        if self._is_handling and signal.getsignal(signal.SIGTERM) == self._terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._is_handling = False
