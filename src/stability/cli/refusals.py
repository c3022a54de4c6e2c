"""Bad input in one or two lines: the key, the value, and what is legal.

Hydra and OmegaConf say it in their own words, over many lines; this says it in ours.
"""

import difflib
import re
from collections.abc import Sequence

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from stability.config.knobs import KNOBS, ConfigError, unknown
from stability.results.atomic import Unreadable

REFUSALS = (
    *(ConfigError, HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeError),
    Unreadable,
)
"""What bad input may raise, on the command line or in files."""

LONGEST = 400
"""Characters of a refusal; what is longer is cut in the middle."""

TYPES = {
    "to Integer": "a whole number",
    "to Float": "a number",
    "valid bool": "true or false",
    "not a ListConfig": "a list, [a,b,...]",
    "not Optional": "",
    "to Dict": "a group of keys, {key: value}",
    "not a subclass": "a group of keys, {key: value}",
    "to string": "a word",
}
"""How OmegaConf says that a type is wrong, and what it wants."""


class Refused(ConfigError):
    """A refusal of something that is no key with a value."""

    def __init__(self, what: str, legal: str) -> None:
        Exception.__init__(self, f"{what}: {legal}")


def explain(error: BaseException) -> str:
    """The refusal for the user: printable, and short whatever was typed."""
    text = " ".join(str(_translate(error)).split())
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]} ... {text[-half:]}"


def _translate(error: BaseException) -> BaseException:
    if isinstance(error, ConfigError | Unreadable):
        return error
    if isinstance(error, OverrideParseException):
        return unreadable(error.override)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, option = error.missing_cfg_file.rpartition("/")
        return ConfigError(group, option, one_of(option, error.options))
    text, cause = str(error), error.__cause__ or error
    if found := re.search(r"Could not override '([^']+)'[^+]*\+[^=]*=?(.*)", text, re.S):
        return _unknown(found[1], found[2].strip())
    if found := re.search(r"Key '.*' (?:is )?not in.*full_key: (\S+)", text, re.S):
        return _unknown(found[1], "...")
    if found := re.fullmatch(r"Error merging override [+]*([^=]+)=(.*)", text, re.S):
        return ConfigError(found[1], found[2], _type_wanted(found[1], cause))
    key = str(getattr(error, "full_key", None) or "config")
    return Refused(key, text.strip().partition("\n")[0])


def unreadable(override: str) -> Refused:
    """The refusal of what does not have the form of an override."""
    return Refused(override, "cannot be read; say KEY=VALUE, special characters as KEY=\"'...'\"")


def one_of(value: str, names: Sequence[str]) -> str:
    """The names that are legal, and which of them may have been meant."""
    near = difflib.get_close_matches(value, names, n=1)
    return f"must be one of {', '.join(names)}" + (f"; did you mean {near[0]}?" if near else "")


def _unknown(key: str, value: str) -> ConfigError:
    for knob in KNOBS.values():
        if isinstance(knob.default, dict) and key.startswith(f"{knob.key}."):
            return ConfigError(key, value, f"is not there yet; +{key}={value} adds it")
    return unknown(key, value)


def _type_wanted(key: str, cause: BaseException) -> str:
    said = str(cause).partition("\n")[0]
    wanted = [ours for theirs, ours in TYPES.items() if theirs in said]
    if not wanted:
        return said
    legal = [k.legal.text for k in KNOBS.values() if k.key == key and k.legal.text]
    if not (legal and isinstance(KNOBS[key].default, list)):  # its words say that it is a list
        legal = [w for w in (wanted[0], *legal) if w]
    return f"must be {', '.join(dict.fromkeys(legal))}" if legal else "must not be null"
