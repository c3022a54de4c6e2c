"""The command: ``python -m stability.run norm=pre,post depth=6,24``.

Worker processes import this module too, as every child of a Python program imports its main module:
it loads nothing heavy by itself, and the help text needs neither hydra nor torch.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from stability import quiet

BAD_INPUT = 2
INTERRUPTED = 130
FULL_ERROR = "HYDRA_FULL_ERROR"


@quiet.when_unread
def main(words: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, or 1 where a run failed, 2 where the input was refused, 128 + the signal that stopped it.
    """
    words = sys.argv[1:] if words is None else list(words)
    if {"-h", "--help"} & set(words):
        from stability import usage

        print(usage.text(config_dirs(words)))
        return 0
    from stability import refusal
    from stability.summary import Finished

    full = os.environ.get(FULL_ERROR) == "1"
    try:
        _compose_and_run(words)
    except Finished as finished:
        return finished.code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except refusal.REFUSALS as error:
        if full:
            traceback.print_exc()
        print(refusal.explain(error), file=sys.stderr)
        return BAD_INPUT
    return 0


def config_dirs(words: Sequence[str]) -> list[Path]:
    """The folders given by ``--config-dir``, found without Hydra."""
    found = []
    for here, after in zip(words, [*words[1:], ""], strict=True):
        flag, equals, value = here.partition("=")
        if flag in ("--config-dir", "-cd"):
            found.append(Path(value if equals else after))
    return found


@contextlib.contextmanager
def _raising_hydra(words: Sequence[str]) -> Iterator[None]:
    """Let Hydra see these words, and let it raise instead of printing and exiting."""
    argv, full = sys.argv, os.environ.get(FULL_ERROR)
    sys.argv, os.environ[FULL_ERROR] = [argv[0], *words], "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full is None:
            del os.environ[FULL_ERROR]
        else:
            os.environ[FULL_ERROR] = full


def _compose_and_run(words: Sequence[str]) -> None:
    import hydra

    from stability import arguments, choices, compose, construct, refusal

    try:
        Path.cwd()
    except OSError as error:
        raise refusal.Refused("the current folder", f"is gone ({error.strerror})") from error
    read = arguments.read(words)
    for folder in read.extra:
        construct.trust(folder)
    compose.register(read.experiment, read.extra)
    conf = str(choices.conf_dir())
    command = hydra.main(version_base="1.3", config_path=conf, config_name="config")(compose.task)
    with _raising_hydra(read.words):
        command()


if __name__ == "__main__":
    sys.exit(main())
