"""Whether the runs of a sweep are those that its experiment plans.

An experiment's keys can be replaced on the command line: ``experiments=NAME depth=6 seed=0,1``. A
claim is judged on such runs all the same, and says that they are others.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import yaml

from stability.config.knobs import KNOBS

Planned: TypeAlias = Mapping[str, Sequence[object]]
"""Config key -> the values that it has in the runs."""

SIZES = ("depth", "dtype", "model.width", "model.heads", "model.context", "model.attention")
"""Keys that are compared with their default too, where an experiment does not set them."""

OTHER = {"name", "record", "hydra", "claim", "defaults"}
"""What an experiment's file says that changes no number."""


def planned(file: Path) -> Planned:
    """The values of each key in the runs of an experiment; nothing where it makes no runs."""
    node = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    grid = (node.get("hydra") or {}).get("sweeper", {}).get("params")
    if not grid:
        return {}
    defaults = {key: [KNOBS[key].default] for key in SIZES}
    own = {k: v for k, v in node.items() if k not in OTHER}
    fixed = {key: [value] for key, value in _flat(own)}
    return defaults | fixed | {key: _listed(values) for key, values in grid.items()}


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _listed(values: object) -> list[str]:
    """The values that a sweep's line stands for: ``1,2``, or ``range(3)``."""
    if counted := re.fullmatch(r"range\((\d+)\)", str(values)):
        return [str(n) for n in range(int(counted[1]))]
    return str(values).split(",")


def departures(runs: pd.DataFrame, plan: Planned) -> str:
    """The keys whose values are others than planned: ``depth=6 instead of 24``; or nothing."""
    said = []
    for key in (key for key in plan if key in runs):
        wanted = {_text(value) for value in plan[key]}
        found = dict.fromkeys(_text(value) for value in runs[key].dropna())
        if found and set(found) != wanted:
            asked = ",".join(map(str, plan[key]))
            said.append(f"{key}={','.join(found)} instead of {asked}")
    return "; ".join(said)


def _text(value: object) -> str:
    """A value as text, numbers in one form: 1e-3, 0.001 and "0.001" are the same."""
    try:
        return f"{float(str(value)):g}"
    except ValueError:
        return str(value).lower()
