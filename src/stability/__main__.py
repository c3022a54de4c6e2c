"""``python -m stability``, or ``stability``: lists the commands, and runs the one that is named.

``stability run norm=pre`` is ``python -m stability.run norm=pre``.
"""

import runpy
import sys
from collections.abc import Sequence

from stability import shell
from stability.config.suggestions import must_be_one_of

COMMANDS = {
    "catalogue": "list the parts that a run can be built of: equation, source, cost",
    "run": "train one run or a sweep, and record every layer",
    "plot": "draw the figures of every sweep below a folder",
    "claims": "judge statements of papers on the runs of a folder",
    "theory": "compare the theory at init with measured runs",
    "compare": "say in what two runs or sweeps differ, or the methods of one",
    "replay": "repeat the step at which a run diverged, operation by operation",
    "export": "send runs to TensorBoard or Weights & Biases",
    "bench": "measure what recording and compiling cost on this machine",
    "work": "execute the runs of a planned sweep",
    "status": "count the runs of a planned sweep, and say what is left",
}
BAD_INPUT = 2


@shell.quiet_exit
def main(words: Sequence[str] | None = None) -> int:
    """List the commands, or run one of them in this process.

    Returns:
        0, or 2 after a line that says which commands exist. A command's own exit code is raised.
    """
    name, *rest = (sys.argv[1:] if words is None else words) or ["--help"]
    if name in COMMANDS:
        sys.argv = [name, *rest]
        runpy.run_module(f"stability.{name}", run_name="__main__", alter_sys=True)
        return 0
    if name == "--version":
        print(shell.version_text())
    elif name in ("--help", "-h", "help"):
        print(_text())
    else:
        print(f"stability: {name}: {must_be_one_of(name, list(COMMANDS))}", file=sys.stderr)
        return BAD_INPUT
    return 0


def _text() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "Gradient stability of deep Transformers: sweep, train, record, plot.",
            "",
            "    python -m stability.run -m norm=pre,post,none depth=6,24,96 name=first",
            "    python -m stability.plot outputs/first",
            "",
            "Commands, each as `python -m stability.NAME` or `stability NAME`; --help explains it:",
            "",
            *(f"    {name:{width}}  {sentence}" for name, sentence in COMMANDS.items()),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
