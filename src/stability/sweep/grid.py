"""A grid of checked configs becomes cells: the runs of a sweep, with their names and folders.

Knows neither Hydra nor how runs are launched.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from stability.config.identity import canonical, digest, flatten, identity
from stability.config.knobs import Config, ConfigError
from stability.sweep import resume
from stability.sweep.shards import cost, deal

MAX_NAME_LENGTH = 100
"""Characters of a run's folder name: every file system allows as many."""


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    config: Config
    """Nested and resolved, with the chosen options."""
    identity: dict[str, Any]
    run: str
    """Hash of the identity."""
    label: str
    """What varies: ``norm-pre_depth-6``; empty where nothing does."""
    folder: Path
    overrides: tuple[str, ...]
    """From these Hydra composes the same config again."""

    @property
    def title(self) -> str:
        """The name that is shown: what varies, or the hash."""
        return self.label or self.run


def time_stamp() -> str:
    """A name for an unnamed sweep; two commands within one second get different ones."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def cells(
    configs: Sequence[Config],
    overrides: Sequence[Sequence[str]],
    hashes: Sequence[str],
    swept: Sequence[str],
) -> list[Cell]:
    """Name the runs; configs with one identity are one run.

    Args:
        configs: checked configs, all with the sweep's name.
        overrides: what composes each.
        hashes: SHA-256 of each one's data.
        swept: keys that were given several values, in the order given.

    Raises:
        ConfigError: two runs that differ have one hash.
    """
    unique: dict[str, tuple[Config, dict[str, Any], tuple[str, ...]]] = {}
    for config, words, sha256 in zip(configs, overrides, hashes, strict=True):
        run_identity = identity(config, sha256)
        run = digest(run_identity)
        _, first, _ = unique.setdefault(run, (config, run_identity, tuple(words)))
        if canonical(first) != canonical(run_identity):
            reason = f"has the hash {run} of another run: {resume.differences(first, run_identity)}"
            raise ConfigError("seed", config.seed, f"{reason}; give one of them another seed")
    labels = _labels(
        {run: flatten(config.plain()) for run, (config, _, _) in unique.items()}, swept
    )
    made = []
    for run, (config, run_identity, words) in unique.items():
        label = labels[run][: MAX_NAME_LENGTH - len(run) - 1].rstrip("-._")
        folder = sweep_folder(config) / (f"{label}_{run}" if label else run)
        made.append(Cell(config, run_identity, run, label, folder, words))
    return made


def sweep_folder(config: Config) -> Path:
    """The folder of a named sweep."""
    assert config.name is not None
    return Path(config.out) / config.name


def _labels(flat: Mapping[str, Mapping[str, Any]], swept: Sequence[str]) -> dict[str, str]:
    """What varies between runs, as text: hash -> ``norm-pre_depth-6``."""
    varying = [key for key in swept if len({_text(values[key]) for values in flat.values()}) > 1]
    names = {key: _short(key, varying) for key in varying}
    return {
        run: "_".join(f"{names[key]}-{_text(values[key])}" for key in varying)
        for run, values in flat.items()
    }


def _short(key: str, keys: Sequence[str]) -> str:
    """The last part of a dotted key, unless another key ends the same."""
    last = key.rpartition(".")[2]
    return last if sum(k.rpartition(".")[2] == last for k in keys) == 1 else key


def _text(value: Any) -> str:
    """A value as a piece of a file name: letters, digits, '.', '_' and '-' only."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", str(value)).strip("-") or "empty"


def place(cells: Sequence[Cell]) -> list[Cell]:
    """Give each cell the folder that it has on disk already, whatever its label there.

    Raises:
        ConfigError: the sweep's folder holds another run under a cell's hash or label, or a link.
    """
    existing = resume.existing(cells[0].folder.parent)
    asked = {cell.run for cell in cells}
    others = {label: folder for run, (label, folder) in existing.items() if run not in asked}
    placed = []
    for cell in cells:
        if cell.run in existing:
            cell = replace(cell, folder=existing[cell.run][1])
            resume.refuse_other(cell.identity, cell.config, cell.folder)
        elif cell.label in others:
            resume.refuse_other(cell.identity, cell.config, others[cell.label])
        resume.refuse_links(cell.folder, cell.config.name)
        placed.append(cell)
    return placed


def make_folder(config: Config) -> None:
    """Make the sweep's folder. Nothing is written before.

    Raises:
        ConfigError: it cannot be made.
    """
    folder = sweep_folder(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("out", config.out, f"cannot be written to ({error})") from error


def needs_process(config: Config) -> bool:
    """Whether a run must not share its process with another: threads keep how they flush."""
    return config.flush_subnormal and config.threads > 1


def waiting(cells: Sequence[Cell]) -> list[Cell]:
    """The cells of this shard that are not finished."""
    shard = cells[0].config.shard
    if shard is not None:
        i, n = map(int, shard.split("/"))
        cells = [cells[k] for k in deal([cost(cell.config) for cell in cells], n)[i - 1]]
    return [cell for cell in cells if resume.finished(cell.folder, cell.config) is None]
