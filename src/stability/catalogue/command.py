"""The command ``python -m stability.catalogue [WORD ...]``: the parts that a run is built of."""

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from stability import shell
from stability.catalogue.cost import Cost
from stability.catalogue.entries import Catalogue, Entry
from stability.cli.compose import composer
from stability.config import instantiate
from stability.config.knobs import GROUPS, ConfigError

FACTS = ("equation", "source", "reported", "combine")
LEGEND = """\
Parameters and operations are those of model=gpt2 (12 blocks, width 768, context 1024): of a norm
beyond norm=none, of a norm_type beyond layernorm, of an activation beyond gelu, and of a model all.
Operations are those of a forward pass per token, without kernels that fuse them."""


@shell.quiet_exit
def main(argv: Sequence[str] | None = None) -> int:
    """Print the entries that match all words; 0, or 2 after a line of reason."""
    args = _parser().parse_args(argv)
    try:
        with opened(args.config_dir) as catalogue:
            kinds = [kind for kind in GROUPS if kind in args.words] or GROUPS
            found = [entry for entry in catalogue.entries(kinds) if entry.matches(args.words)]
            costed = [(entry, catalogue.added(entry)) for entry in found]
    except ConfigError as error:
        return _refuse(error)
    if not found:
        return _refuse(f"{' '.join(args.words)}: nothing matches; kinds are {', '.join(GROUPS)}")
    if args.json:
        print(json.dumps([_plain(*each) for each in costed], indent=2, ensure_ascii=False))
        return 0
    for entry, cost in costed:
        print("\n".join(_lines(entry, cost)), end="\n\n")
    print(LEGEND)
    return 0


@contextmanager
def opened(config_dirs: Sequence[Path]) -> Iterator[Catalogue]:
    """The catalogue of conf/ and of the user's folders, whose modules are trusted."""
    for folder in config_dirs:
        if not folder.is_dir():
            raise ConfigError("--config-dir", folder, "is not a folder")
        instantiate.trust(folder)
    with composer({}, config_dirs, "catalogue") as made:
        yield Catalogue(made, config_dirs)


def _refuse(reason: object) -> int:
    print(f"stability.catalogue: {reason}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = shell.command_parser(
        "catalogue", "List the parts of conf/: equation, source, reported result, cost."
    )
    parser.add_argument(
        "words", nargs="*", metavar="WORD",
        help=f"a kind ({', '.join(GROUPS)}), or a text that an entry must contain; all must match",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one list of objects")
    parser.add_argument(
        "--config-dir", action="append", default=[], type=Path, metavar="DIR",
        help="list the parts of this folder as well (may be repeated)",
    )  # fmt: skip
    return parser


def _plain(entry: Entry, cost: Cost | None) -> dict[str, object]:
    parameters, flops = cost or (None, None)
    return {**asdict(entry), "parameters": parameters, "flops_per_token": flops}


def _lines(entry: Entry, cost: Cost | None) -> Iterator[str]:
    yield f"{entry.kind}={entry.name}  {entry.label}"
    facts = {name: text for name, text in asdict(entry).items() if name in FACTS and text}
    if cost is not None:
        sign = "" if entry.kind == "model" else "+"
        facts["adds" if sign else "has"] = (
            f"{cost.parameters:{sign},} parameters, {cost.flops:{sign},.0f} operations a token"
        )
    for name, text in facts.items():
        yield textwrap.fill(
            f"{name:9} {text}", 100, initial_indent="    ", subsequent_indent=" " * 14
        )
