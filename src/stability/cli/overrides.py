"""The words KEY=VALUE[,VALUE...] of a command line or of an experiment's grid, parsed once.

A key is a knob, a group, ``experiments``, ``hydra/launcher`` or a key below ``hydra.launcher``.
Every other key is refused.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString, Transformer
from hydra.errors import HydraException

from stability.cli.refusal_text import Refused
from stability.config import folders
from stability.config.knobs import GROUPS, KNOBS, ConfigError, Knob, unknown
from stability.config.ranges import spelled
from stability.config.suggestions import must_be_one_of

LAUNCHER = "hydra/launcher"
OPTION_KEYS = (*GROUPS, "experiments", LAUNCHER)
"""Keys whose values are names of files."""

HYDRA_KEYS = (
    "of Hydra's own keys only those of hydra/launcher can be set;"
    " out=FOLDER and name=NAME say where runs go"
)

MAX_RUNS = 10_000
"""Runs that a sweep may have: a typing error must not compose for days."""


class Assignment(NamedTuple):
    """One key of one run."""

    key: str
    value: Any
    text: str
    """The value in Hydra's grammar."""
    adds: bool
    """Whether the key may be new (``+key=value``)."""

    @property
    def word(self) -> str:
        """From this word Hydra composes the same again; ``++`` sets a key, new or not."""
        return f"{'' if self.key in GROUPS else '++'}{self.key}={self.text}"


@dataclass(frozen=True)
class Setting:
    """What one word says."""

    word: str
    key: str
    typed: str
    """Everything after the first ``=``."""
    swept: bool
    values: tuple[Assignment, ...]

    @property
    def given(self) -> Any:
        """The value; the text of several."""
        return self.typed if self.swept else self.values[0].value


def parse(words: Iterable[str], config_dirs: Sequence[Path]) -> dict[str, Setting]:
    """Every key with its setting; of two settings of a key the last one counts.

    Raises:
        ConfigError: for the first word that is refused.
    """
    settings = (_setting(word, config_dirs) for word in words)
    return {setting.key: setting for setting in settings}


def is_launcher_key(key: str) -> bool:
    """Whether a key says how runs are launched, and nothing of a run."""
    return key == LAUNCHER or f"{key}.".startswith("hydra.launcher.")


def _setting(word: str, config_dirs: Sequence[Path]) -> Setting:
    override = _parsed(word)
    key, typed = override.get_key_element().lstrip("+"), override.get_value_string()
    adds, swept = override.is_add() or override.is_force_add(), override.is_sweep_override()
    knobs = _knobs(key)
    if not (knobs or key in OPTION_KEYS or is_launcher_key(key)):
        of_hydra = re.split("[./@]", key)[0] == "hydra"
        raise Refused(word, HYDRA_KEYS) if of_hydra else unknown(key, typed)
    if adds and key in OPTION_KEYS:
        raise Refused(word, f"leave out the '+': {key}=NAME chooses an option")
    tell_apart = knobs and all(k.identity or k.key.startswith("data.") for k in knobs)
    if swept and not (key in GROUPS or tell_apart):
        raise ConfigError(key, typed, "takes one value: it is no part of a run's identity")
    names = _names(key, config_dirs)
    values = _elements(override, names or []) if swept else [(override.value(), typed)]
    for value, _ in values:
        no_experiment = key == "experiments" and value is None
        if names is not None and spelled(value) not in names and not no_experiment:
            raise Refused(word, _no_name(key, value, names))
    made = tuple(Assignment(key, value, text, adds) for value, text in values)
    return Setting(word, key, typed, swept, made)


def _no_name(key: str, value: object, names: Sequence[str]) -> str:
    """Why a value names no option."""
    if isinstance(value, list):
        return f"a grid is written without brackets: {key}={spelled(value)[1:-1]}"
    return must_be_one_of(spelled(value), names)


def _unreadable(word: str) -> str:
    """Why a word is no KEY=VALUE, in terms of what was probably meant."""
    key, equals, value = word.partition("=")
    if not equals:
        return f"is no KEY=VALUE; {'--help lists every key' if key == 'help' else 'say KEY=VALUE'}"
    if value.endswith(","):
        return f"ends in a comma; say {key}=A,B without spaces"
    return "cannot be read; say KEY=VALUE, special characters as KEY=\"'...'\""


def _parsed(word: str) -> Override:
    try:
        override = OverridesParser.create().parse_override(word)
    except (HydraException, RecursionError):
        override = None
    if override is None or not override.key_or_group:
        raise Refused(word, _unreadable(word))
    if override.is_delete():
        raise Refused(word, "keys cannot be deleted")
    return override


def _knobs(key: str) -> list[Knob]:
    """The knobs that a key sets: one, a part of one (``norm.build.x``), or a group of them."""
    return [
        k
        for k in KNOBS.values()
        if key == k.key
        or k.key.startswith(f"{key}.")
        or (isinstance(k.default, dict) and key.startswith(f"{k.key}."))
    ]


def _names(key: str, config_dirs: Sequence[Path]) -> list[str] | None:
    """The names among which a key chooses, if it chooses an option or an experiment."""
    if key == "experiments":
        return sorted(folders.experiments(config_dirs))
    return folders.options(key, config_dirs) if key in GROUPS else None


def _elements(override: Override, names: Sequence[str]) -> list[tuple[Any, str]]:
    """The values of a grid over one key, each with its text; `names` are the key's options."""
    key, typed, parsed = override.key_or_group, override.get_value_string(), override.value()
    if override.is_interval_sweep():
        raise ConfigError(key, typed, "a grid takes values and ranges")
    found: list[Any]
    try:
        if isinstance(parsed, Glob):
            found = parsed.filter(list(names))
        else:
            found = list(itertools.islice(override.sweep_iterator(), MAX_RUNS + 1))
    except (ValueError, HydraException) as error:  # a range of step 0
        raise ConfigError(key, typed, f"gives no values ({error})") from error
    if not found:
        raise ConfigError(key, typed, "gives no values")
    if any(isinstance(element, dict) for element in found):
        raise ConfigError(key, typed, "a group of keys takes one value; sweep one of its keys")
    return [(_plain(element), Transformer.str(element)) for element in found]


def _plain(element: Any) -> Any:
    """A parsed element with ordinary strings in place of quoted ones."""
    if isinstance(element, QuotedString):
        return element.text
    if isinstance(element, list):
        return [_plain(each) for each in element]
    if isinstance(element, dict):
        return {_plain(key): _plain(value) for key, value in element.items()}
    return element
