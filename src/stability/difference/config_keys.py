"""In which keys of their configs, and in which software, two sides differ."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from stability.config.identity import flatten
from stability.difference.pairing import Run, Side, text
from stability.results.run_row import read_config

SOFTWARE = (
    *("data.sha256", "versions.python", "versions.torch", "versions.numpy", "versions.stability"),
    *("git.revision", "git.dirty", "device"),
)
"""Facts of run.json that are compared beside the config."""
ABSENT = "absent"


def differing_keys(a: Side, b: Side) -> pd.DataFrame:
    """One row per key whose values differ between the sides: ``key``, ``a``, ``b``.

    A key that varies within a side has its values listed. Names of folders and what figures call an
    option are left out; ``run.device`` is the device that was used, ``device`` what was asked for.
    """
    sides = [_values(side) for side in (a, b)]
    rows = []
    for key in dict.fromkeys((*sides[0], *sides[1])):
        texts = [", ".join(side.get(key, [ABSENT])) for side in sides]
        if texts[0] != texts[1]:
            rows.append((key, *texts))
    return pd.DataFrame(rows, columns=["key", "a", "b"])


def _values(side: Side) -> dict[str, list[str]]:
    """Key -> the values that occur, each once, sorted."""
    found: dict[str, set[str]] = {}
    for row in side.runs.to_dict("records"):
        for key, value in _facts(Run(row["path"], row)).items():
            found.setdefault(key, set()).add(text(value))
    return {key: sorted(values, key=_order) for key, values in found.items()}


def _facts(run: Run) -> Mapping[str, Any]:
    config = flatten(read_config(run.path))
    shown = {k: v for k, v in config.items() if k not in ("out", "name") and not _is_look(k)}
    facts = {name: run.row.get(name) for name in SOFTWARE}
    return shown | {("run.device" if k == "device" else k): v for k, v in facts.items()}


def _is_look(key: str) -> bool:
    """Whether a key only says how figures show an option, or which class the option names."""
    return key.rpartition(".")[2] in ("label", "order", "_target_")


def _order(value: str) -> tuple[float, str]:
    """Numbers by size, then words."""
    try:
        return float(value), value
    except ValueError:
        return math.inf, value
