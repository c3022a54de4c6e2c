"""How commands behave in a shell: a closed stdout, Ctrl-C, and processes that outlive a command."""

import argparse
import functools
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
Code = TypeVar("Code", bound=int | None)

BROKEN_PIPE = 141
"""Exit code after stdout was closed: 128 + SIGPIPE."""
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT."""

DISTRIBUTION = "gradient-stability"
"""The name that pip knows; on the package index ``stability`` is another project."""

STACK = 96 << 20
"""Bytes of stack, more than autograd needs to free the graph of the deepest net, call in call.

8 MiB, the usual limit, are enough for some 3,000 blocks. Linux leaves 128 MiB of room.
"""


def quiet_exit(main: Callable[P, Code]) -> Callable[P, Code | int]:
    """Exit silently with code 141 when stdout is closed (`| head`), with 130 after Ctrl-C.

    A decorator for a command's ``main``, which returns these codes. (The default action of SIGPIPE
    would do the first, but it would also end the command when a pipe to a worker process breaks.)
    """

    @functools.wraps(main)
    def inner(*args: P.args, **kwargs: P.kwargs) -> Code | int:
        _open_closed_streams()
        try:
            try:
                return main(*args, **kwargs)
            finally:
                print(end="", flush=True)
        except BrokenPipeError:
            if not _stdout_is_closed():
                raise
            discard_stdout()
            return BROKEN_PIPE
        except KeyboardInterrupt:
            return INTERRUPTED

    return inner


def package_version() -> str:
    """The version of this package."""
    from importlib.metadata import version  # slow to import, and commands start with this file

    return version(DISTRIBUTION)


def version_text() -> str:
    """What ``--version`` of every command prints."""
    return f"stability {package_version()}"


class ShowVersion(argparse.Action):
    """``--version``: print the version and exit. The text is made only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(version_text())
        parser.exit()


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one line, and has options by their full names."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            hint = (
                "no such option" if rest[0].startswith("-") else "several names are one word: A,B"
            )
            self.error(f"{' '.join(rest)}: {hint}")
        return found

    def error(self, message: str) -> NoReturn:
        name = self.prog.removeprefix("python -m ")
        self.exit(2, f"{name}: {message} (--help explains the command)\n")


def command_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of ``python -m stability.<module>``: options by their full names, --version."""
    parser = Parser(f"python -m stability.{module}", allow_abbrev=False, description=description)
    parser.add_argument("--version", action=ShowVersion)
    return parser


def _open_closed_streams() -> None:
    """Open the standard streams that are closed (``>&-``) on the null device.

    Otherwise the first file that the command opens becomes its stdout, and a worker's.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def discard_stdout() -> None:
    """Send what is still to be printed to the null device: the interpreter flushes as it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _stdout_is_closed() -> bool:
    """Whether stdout is closed; finds out by writing an empty line."""
    try:
        print(flush=True)
    except BrokenPipeError:
        return True
    return False


def end_with_parent(grace: float = 0.0) -> None:
    """End this process when its parent process ends, however that one ended.

    Args:
        grace: seconds between SIGTERM, which lets this process write its state, and the end.
    """
    from multiprocessing import parent_process  # slow to import, and commands start with this file

    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        if grace > 0:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(grace)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def allow_deep_stack() -> None:
    """Let the stack of the main thread grow to `STACK`, as far as the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK if hard == resource.RLIM_INFINITY else min(STACK, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
