"""The command line, read and refused piece by piece before Hydra composes anything of it."""

import contextlib
import io
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString, ValueType
from hydra.errors import HydraException

from stability.cli.refusals import Refused, one_of, unreadable
from stability.config import folders
from stability.config.knobs import GROUPS, ConfigError

OPTION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
"""Names of options: no path that leads out of a group."""

OURS = {
    "hydra.mode": "is always MULTIRUN: one run is a sweep of one",
    "hydra.sweep": "out=FOLDER and name=NAME say where runs go",
    "hydra.run": "out=FOLDER and name=NAME say where runs go",
    "hydra.sweeper": "an experiment's grid belongs into its yaml, yours on the command line",
    "hydra/sweeper": "must be grid",
}
"""Parts of Hydra's own config that the sweeper fills in itself."""


class Arguments(NamedTuple):
    """A command line that Hydra can be given."""

    words: list[str]
    extra: list[Path]
    """Folders of ``--config-dir``."""
    experiment: str | None


def read(words: Sequence[str]) -> Arguments:
    """Take a command line apart.

    Raises:
        ConfigError: for the first word that is refused.
    """
    flags = _flags(words)
    extra = [Path(flags.config_dir)] if flags.config_dir is not None else []
    for folder in extra:
        if not folder.is_dir():
            raise ConfigError("--config-dir", folder, "is no folder")
    experiment: Any = None
    for override in map(_parse, flags.overrides):
        check(override, extra)
        if flags.cfg and override.is_sweep_override():
            raise Refused(
                str(override.input_line), "--cfg shows one config: one value for each key"
            )
        if override.key_or_group == "experiments":
            experiment = override.value()
    other = (flags.cfg, flags.info, flags.hydra_help, flags.shell_completion, flags.multirun)
    # Said by a flag, because Hydra takes a config that it refuses for one without a mode.
    multirun = [] if any(other) else ["--multirun"]
    return Arguments([*multirun, *words], extra, experiment)


def _flags(words: Sequence[str]) -> Namespace:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            flags = get_args_parser().parse_args(list(words))
    except SystemExit as error:
        if error.code == 0:  # --version
            raise
        raise Refused(" ".join(words), said.getvalue().rpartition("error: ")[2]) from None
    if flags.experimental_rerun is not None:
        raise ConfigError("--experimental-rerun", flags.experimental_rerun, "no pickle is read")
    modes = [f for f in ("run", "multirun", "cfg", "info", "shell_completion") if vars(flags)[f]]
    if flags.run or len(modes) > 1:
        raise Refused(f"--{modes[0]}", "leave it out, or give it alone")
    if flags.resolve and not flags.cfg:
        raise Refused("--resolve", "needs --cfg")
    return flags


def _parse(text: str) -> Override:
    try:
        override = OverridesParser.create().parse_override(text)
    except (HydraException, RecursionError):
        raise unreadable(text) from None
    if not override.key_or_group:
        raise unreadable(text)
    return override


def check(override: Override, extra: Sequence[Path]) -> None:
    """Refuse what Hydra would accept, or refuse in words of its own, at this one override.

    Raises:
        ConfigError: it is refused.
    """
    key, text = override.key_or_group, str(override.input_line)
    ours = [legal for part, legal in OURS.items() if f"{key}.".startswith(f"{part}.")]
    if ours and text != "hydra/sweeper=grid":
        raise Refused(text, ours[0])
    if re.match(r"hydra\b(?![/.]launcher\b)", key) and not ours:
        raise Refused(text, "of Hydra's own keys only those of hydra/launcher can be set")
    if override.is_delete() and not override.is_hydra_override():
        raise Refused(text, "keys cannot be deleted")
    if (override.is_add() or override.is_force_add()) and (key in GROUPS or "/" in key):
        raise Refused(text, f"leave out the '+': {key}=NAME chooses an option")
    if key == "experiments" and override.is_sweep_override():
        raise Refused(text, "takes one; give each experiment a command of its own")
    if key not in (*GROUPS, "experiments") and not key.startswith("hydra/"):
        return
    for value in _values(override):
        if key == "experiments" and value is None:
            continue
        if not isinstance(value, str) or not OPTION.fullmatch(value):
            known = (
                folders.experiments(extra) if key == "experiments" else folders.options(key, extra)
            )
            raise Refused(text, one_of(str(value), sorted(known)))


def _values(override: Override) -> list[Any]:
    """The values that an override of a group gives it, as they were typed."""
    if not override.is_sweep_override():
        return [override.value()]
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        return []
    if not override.is_choice_sweep():
        return [override.get_value_string()]
    return [v.text if isinstance(v, QuotedString) else v for v in override.sweep_iterator()]
