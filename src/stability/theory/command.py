"""Theory against measurement: ``python -m stability.theory check PATH``.

The theory is `prediction.predict`, and `run_theory.theory_of_run` for a run on disk. This command
compares it with every run below PATH at init and prints the errors.

The errors found at width 256 are in experiments/theory_check.md.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from stability import shell
from stability.results.atomic import Unreadable
from stability.theory.comparison import COMPARED, compare

TOLERANCE = {quantity.name: quantity.tolerance for quantity in COMPARED}
LEGEND = f"""\
Percent, median over the outputs of the sublayers, +- a standard error over seeds.
off: the error exceeds {TOLERANCE["variance"]}% (gradients {TOLERANCE["gradient"]}%) by more than \
two standard errors.
saturated: a softmax picks single tokens; gradients that passed through it are not predicted.
See experiments/theory_check.md."""


@shell.quiet_exit
def main(argv: Sequence[str] | None = None) -> int:
    """The command ``python -m stability.theory check PATH``."""
    parser = shell.command_parser("theory", None)
    commands = parser.add_subparsers(required=True)
    check = commands.add_parser("check", help="theory against every run below PATH, at step 0")
    check.add_argument("path", type=Path, nargs="?", default=Path("outputs"))
    args = parser.parse_args(argv)
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            track = partial(progress.track, description="theory")
            found = compare(args.path, lambda results, count: track(results, total=count))
        for name, why in found.damaged.items():
            print(f"stability.theory: left out {name}: {why}", file=sys.stderr)
        table = found.table
        print(table.to_string(index=False, na_rep="") if len(table) else "no finished run")
        print(f"\n{LEGEND}")
    except Unreadable as error:
        print(f"stability.theory: {error}", file=sys.stderr)
        return 2
    return 0
