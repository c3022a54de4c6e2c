"""The command: ``python -m stability.run norm=pre,post depth=6,24``.

Worker processes import this module too, as every child of a Python program imports its main module:
it loads nothing heavy by itself, and the help text needs neither hydra nor torch.
"""

import os
import sys
import traceback
from collections.abc import Sequence

from stability import shell

BAD_INPUT = 2
FULL_ERROR = "HYDRA_FULL_ERROR"


@shell.quiet_exit
def main(words: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, or 1 where a run failed, 2 where the input was refused, 128 + the signal that stopped it.
    """
    from stability.cli import flags, refusal_text

    try:
        chosen = flags.parse(sys.argv[1:] if words is None else words)
        if chosen.version:
            print(shell.version_text())
            return 0
        if chosen.help or chosen.experiments:
            from stability.cli import help_text

            printed = help_text.text if chosen.help else help_text.experiments
            print(printed(chosen.config_dirs))
            return 0
        if sys.stdout.isatty():  # imports take seconds
            print("reading the configs ...", flush=True)
        from stability.cli import launch

        return launch.launch(chosen)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return shell.INTERRUPTED
    except refusal_text.REFUSALS as error:
        if os.environ.get(FULL_ERROR) == "1":
            traceback.print_exc()
        print(refusal_text.explain(error), file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
