"""The flags of the command; needs neither hydra nor torch."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from stability.cli.refusal_text import Refused
from stability.config.knobs import GROUPS, KNOBS, ConfigError


@dataclass
class Flags(argparse.Namespace):
    """A command line, split into flags and words."""

    words: list[str] = field(default_factory=list)
    """Every KEY=VALUE."""
    config_dirs: list[Path] = field(default_factory=list)
    cfg: str | None = None
    plan: bool = False
    """Write the plan of the sweep and run nothing."""
    help: bool = False
    experiments: bool = False
    version: bool = False
    hydra_help: bool = False
    multirun: bool = False
    """Has no effect: every command is a sweep."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused("command line", message)


def _unknown(words: Sequence[str]) -> str:
    """Why words that begin with a dash are refused."""
    name = words[0].lstrip("-").partition("=")[0]
    for key in (*GROUPS, *KNOBS):
        if key.rpartition(".")[2] == name:
            return f"{words[0]}: keys have no dashes; say {key}=VALUE"
    return f"unrecognized arguments: {' '.join(words)}"


def parse(words: Sequence[str]) -> Flags:
    """Split a command line.

    Raises:
        ConfigError: a flag is unknown, or a folder of ``--config-dir`` does not exist.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--experiments", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-cd", "--config-dir", dest="config_dirs", action="append", type=Path)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--cfg", choices=["job"])
    flags = Flags()
    _, flags.words = parser.parse_known_args(words, namespace=flags)
    if unknown := [word for word in flags.words if word.startswith("-")]:
        parser.error(_unknown(unknown))
    for folder in flags.config_dirs:
        if not folder.is_dir():
            raise ConfigError("--config-dir", folder, "is not a folder")
    return flags
