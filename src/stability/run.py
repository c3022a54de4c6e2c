"""The command: ``python -m stability.run norm=pre,post depth=6,24``.

Worker processes import this module too, as every child of a Python program imports its main module:
it loads nothing heavy by itself, and the help text needs neither hydra nor torch.
"""

import contextlib
import io
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

BAD_INPUT = 2
INTERRUPTED = 130
FULL_ERROR = "HYDRA_FULL_ERROR"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, or 1 where a run failed, 2 where the input was refused, 128 + the signal that stopped it.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    extra = config_dirs(arguments)
    if {"-h", "--help"} & set(arguments):
        from stability import usage

        print(usage.text(extra))
        return 0
    from stability import refusal
    from stability.summary import Finished

    full = os.environ.get(FULL_ERROR) == "1"
    try:
        with _raising_hydra(arguments):
            _compose_and_run(arguments, extra)
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


def config_dirs(arguments: Sequence[str]) -> list[Path]:
    """The folders given by ``--config-dir``."""
    found = []
    for here, after in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, value = here.partition("=")
        if flag in ("--config-dir", "-cd"):
            found.append(Path(value if equals else after))
    return found


@contextlib.contextmanager
def _raising_hydra(arguments: Sequence[str]) -> Iterator[None]:
    """Let Hydra see these arguments, and let it raise instead of printing and exiting."""
    argv, full = sys.argv, os.environ.get(FULL_ERROR)
    sys.argv, os.environ[FULL_ERROR] = [argv[0], *_as_multirun(arguments)], "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full is None:
            del os.environ[FULL_ERROR]
        else:
            os.environ[FULL_ERROR] = full


def _as_multirun(arguments: Sequence[str]) -> list[str]:
    """One run is a sweep of one; said by a flag, because a config that is refused says nothing."""
    from hydra._internal.utils import get_args_parser

    from stability.config import ConfigError

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            flags = get_args_parser().parse_args(list(arguments))
    except SystemExit as error:
        if error.code == 0:  # --version
            raise
        text = said.getvalue().strip().rpartition("error: ")[2]
        raise ConfigError("command", " ".join(arguments), text) from None
    if flags.experimental_rerun is not None:
        raise ConfigError("--experimental-rerun", flags.experimental_rerun, "no pickle is read")
    for override in flags.overrides:
        if re.match(r"[+~]*hydra\.mode\b", override):
            raise ConfigError("hydra.mode", override.partition("=")[2], "is always MULTIRUN")
    other = (flags.cfg, flags.info, flags.hydra_help, flags.shell_completion, flags.multirun)
    return [*arguments] if any(other) else ["--multirun", *arguments]


def _compose_and_run(arguments: Sequence[str], extra: Sequence[Path]) -> None:
    import hydra

    from stability import choices, compose, construct
    from stability.config import ConfigError

    for folder in extra:
        if not folder.is_dir():
            raise ConfigError("--config-dir", folder, "is no folder")
        construct.trust(folder)
    compose.register(_experiment(arguments), extra)
    conf = str(choices.conf_dir())
    hydra.main(version_base="1.3", config_path=conf, config_name="config")(compose.task)()


def _experiment(arguments: Sequence[str]) -> str | None:
    """The experiment that the arguments choose."""
    chosen = [a.partition("=")[2] for a in arguments if re.match(r"\+*experiments=", a)]
    return chosen[-1] if chosen and chosen[-1] not in ("null", "") else None


if __name__ == "__main__":
    sys.exit(main())
