"""A command whose reader has gone, as ``head`` does after its lines, ends without a word.

So does one that is interrupted from the keyboard.
"""

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Code = TypeVar("Code", bound=int | None)

BROKEN_PIPE = 141
"""Exit code of a command that nobody reads: 128 + SIGPIPE, as of any program in a pipe."""
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT."""


def when_unread(main: Callable[P, Code]) -> Callable[P, Code | int]:
    """Decorates a command's ``main``: it returns `BROKEN_PIPE` where its output can go nowhere.

    And `INTERRUPTED` after Ctrl-C.
    """

    @functools.wraps(main)
    def inner(*args: P.args, **kwargs: P.kwargs) -> Code | int:
        _open_closed()
        try:
            try:
                return main(*args, **kwargs)
            finally:
                print(end="", flush=True)
        except BrokenPipeError:
            if not _reader_has_gone():  # it is about another pipe, and an error
                raise
            silence()
            return BROKEN_PIPE
        except KeyboardInterrupt:
            return INTERRUPTED

    return inner


def _open_closed() -> None:
    """Give a command that was started with ``>&-`` streams that go nowhere.

    Else the first file it opens becomes its standard output, and a worker's.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def silence() -> None:
    """Let what is still to be printed go nowhere: the interpreter writes it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _reader_has_gone() -> bool:
    try:
        print(flush=True)
    except BrokenPipeError:
        return True
    return False
