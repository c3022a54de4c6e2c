"""The command: ``python -m stability.run norm=pre,post depth=6,24``.

Worker processes import this module too, as every child of a Python program imports its main module:
it loads nothing heavy by itself, and the help text needs neither hydra nor torch.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from stability import shell

BAD_INPUT = 2
INTERRUPTED = 130
FULL_ERROR = "HYDRA_FULL_ERROR"


@shell.quiet_exit
def main(words: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, or 1 where a run failed, 2 where the input was refused, 128 + the signal that stopped it.
    """
    words = sys.argv[1:] if words is None else list(words)
    if {"-h", "--help"} & set(words):
        from stability.cli import help_text

        print(help_text.text(config_dirs(words)))
        return 0
    from stability.cli import launch, refusals
    from stability.sweep.summary import Finished

    full = os.environ.get(FULL_ERROR) == "1"
    try:
        launch.launch(words)
    except Finished as finished:
        return finished.code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except refusals.REFUSALS as error:
        if full:
            traceback.print_exc()
        print(refusals.explain(error), file=sys.stderr)
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


if __name__ == "__main__":
    sys.exit(main())
