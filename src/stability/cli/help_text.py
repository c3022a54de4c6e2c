"""The help text, from `config.knobs.KNOBS` and from the options that lie in conf/.

Imports neither hydra nor torch: it is printed before either is needed.
"""

import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from stability.config import folders
from stability.config.knobs import GROUPS, KNOBS, Config, Knob
from stability.config.ranges import spelled

HEAD = """\
usage: python -m stability.run [-m] [KEY=VALUE[,VALUE...] ...] [experiments=NAME] [--config-dir DIR]

Trains one GPT for every combination of the values given and records what happens in every layer.
  python -m stability.run norm=pre,post depth=6,24 name=first    four runs, in outputs/first
  python -m stability.run norm=post train.steps=0 depth=6,24,96  at init: one pass, no training
  python -m stability.run experiments=vanishing                  a sweep kept in experiments/
The same command with the same name=NAME runs only what is missing."""

COMMON = {
    "norm": "where the norm sits",
    "norm_type": "which norm it is",
    "init": "how weights are initialised",
    "depth": "blocks",
    "dtype": "number format",
    "seed": "seed=range(5) gives five",
    "train.steps": "updates; 0 measures at init",
    "train.lr": "learning rate",
    "model": "shape of the net",
    "name": "of the sweep's folder",
}
"""The keys that people use most."""

FLAGS = """\
-m, --multirun       may be left out: one run is a sweep of one
--config-dir DIR     more options in DIR/<group>/*.yaml; the modules in DIR may be built
--cfg job            print the composed config of one run (one value for each key) and stop
--plan               write the checked sweep for python -m stability.work SWEEP and stop
-h, --help           this text
--experiments        what each sweep of experiments/ asks, and stop
--version            print the version
--hydra-help         print the launchers of Hydra, with their keys
hydra/launcher=NAME  procs (processes on this machine) or any launcher that Hydra knows"""

TAIL = """\
exit code: 0 = every run completed or diverged, 1 = a run failed, 2 = the config was refused and
nothing was written, 130 or 143 = interrupted. HYDRA_FULL_ERROR=1 shows the traceback."""

WIDTH = 100
INDENT = 34


def text(config_dirs: Sequence[Path] = ()) -> str:
    """The whole help text; `config_dirs` are the folders given by ``--config-dir``."""
    names = {group: folders.options(group, config_dirs) for group in GROUPS}
    defaults = folders.defaults()
    listed = {g: f"{', '.join(found)} (default: {defaults[g]})" for g, found in names.items()}
    count = len(folders.experiments(config_dirs))
    listed["experiments"] = f"one of {count} sweeps; --experiments says what each asks"
    options = "\n".join(_entry(name, body) for name, body in listed.items())
    knobs = "\n".join(_knobs())
    return "\n\n".join(
        [
            HEAD,
            "Most used:\n" + "\n".join(f"  {key:12} {doc}" for key, doc in COMMON.items()),
            f"Options, one yaml each:\n{options}",
            f"Keys with their defaults, units and legal ranges:\n{knobs}",
            "Flags:\n" + textwrap.indent(FLAGS, "  "),
            TAIL,
        ]
    )


def experiments(config_dirs: Sequence[Path] = ()) -> str:
    """A line for each sweep that is kept: its name, and the first sentence of its yaml."""
    found = sorted(folders.experiments(config_dirs).items())
    return "\n".join(_entry(name, _first_sentence(path)) for name, path in found)


def _first_sentence(path: Path) -> str:
    """Of the comments at the top of a yaml file."""
    lines = itertools.takewhile(lambda line: line[:1] == "#", path.read_text("utf-8").splitlines())
    text = " ".join(line[1:].strip() for line in lines if "@package" not in line)
    return re.split(r"(?<=[.?]) |$", text)[0]


def _knobs() -> Iterator[str]:
    part = ""
    for knob in KNOBS.values():
        head, _, name = knob.key.rpartition(".")
        if head != part:
            part = head
            if head:
                doc = Config.__dataclass_fields__[head.split(".")[0]].metadata["doc"]
                yield f" {head}: {doc}"
        if name not in ("label", "order") or head == "norm":
            yield _entry(f"{knob.key}={spelled(knob.default)}", _explain(knob))


def _explain(knob: Knob) -> str:
    notes = [knob.unit, knob.legal.text]
    return f"{knob.doc} [{'; '.join(n for n in notes if n)}]" if any(notes) else knob.doc


def _entry(name: str, body: str) -> str:
    """A name and its explanation in two columns; a long name has its own line."""
    lead = f"  {name}".ljust(INDENT)
    first = "" if len(lead) > INDENT else lead
    filled = textwrap.fill(
        body, WIDTH, initial_indent=first or " " * INDENT, subsequent_indent=" " * INDENT
    )
    return filled if first else "\n".join(textwrap.wrap(lead.rstrip(), WIDTH)) + "\n" + filled
