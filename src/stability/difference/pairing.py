"""Which run of one side is compared with which run of the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from stability.results.atomic import Unreadable
from stability.results.frames import remarks, varying
from stability.results.index import index, sweeps


@dataclass(frozen=True)
class Side:
    """One of the two folders that are compared."""

    path: Path
    name: str
    """As legends call it."""
    runs: pd.DataFrame = field(repr=False)
    """One row per run, with its folder as ``path``."""
    remarks: tuple[str, ...] = ()
    """Unfinished and damaged runs."""


class Run(NamedTuple):
    """A run of one side."""

    path: Path
    row: Mapping[str, Any]
    """Its row of the index."""


@dataclass(frozen=True)
class Cell:
    """The runs of one variant on both sides, which differ in their seed alone."""

    variant: Mapping[str, str]
    """The keys that vary within a side, with their values here; empty where none varies."""
    seeds: tuple[str, ...]
    """What the pairs have in common: seeds, or names of folders. Empty where nothing is paired."""
    a: tuple[Run, ...]
    b: tuple[Run, ...]

    @property
    def is_paired(self) -> bool:
        return bool(self.seeds)

    @property
    def label(self) -> str:
        """The variant in words, empty where there is only one."""
        return ", ".join(f"{key}={value}" for key, value in self.variant.items())


class Pairing(NamedTuple):
    """The cells, and what has no partner, in words."""

    cells: list[Cell]
    unmatched: list[str]


def read_sides(a: Path, b: Path) -> tuple[Side, Side]:
    """Both folders, with names that tell them apart.

    Raises:
        Unreadable: a folder holds no run, no readable run, or several sweeps.
    """
    names = _names(a.resolve(), b.resolve())
    return _side(a, names[0]), _side(b, names[1])


def _side(path: Path, name: str) -> Side:
    found = sweeps(path)
    if len(found) > 1:
        raise Unreadable(f"{path}: holds {len(found)} sweeps, name one run or one sweep")
    ((sweep, folders),) = found.items()
    read = index(sweep, folders)
    paths = {folder.name: folder for folder in folders}
    said = [f"left out {folder}: {why}" for folder, why in read.damaged.items()]
    runs = read.runs.assign(path=read.runs["folder"].map(paths))
    return Side(path, name, runs, (*remarks(runs), *said))


def _names(a: Path, b: Path) -> tuple[str, str]:
    """The last parts of two paths, as many as tell them apart."""
    if a == b:
        return f"{a.name} (A)", f"{b.name} (B)"
    for count in range(1, max(len(a.parts), len(b.parts)) + 1):
        tails = ["/".join(p.parts[-count:]) for p in (a, b)]
        if tails[0] != tails[1]:
            break
    return tails[0], tails[1]


def pair(a: Side, b: Side) -> Pairing:
    """Match variants by the keys that vary within a side, and their runs by seed.

    Runs without a seed, those of external loops, are matched by the names of their folders.

    Raises:
        Unreadable: no variant has a partner, or several runs could be the partner of one.
    """
    keys = [k for k in dict.fromkeys((*varying(a.runs), *varying(b.runs))) if k != "seed"]
    sides = [_variants(side, keys) for side in (a, b)]
    common = [values for values in sides[0] if values in sides[1]]
    if not common:
        counts = " and ".join(f"{s.name} has {len(v)}" for s, v in zip((a, b), sides, strict=True))
        raise Unreadable(f"no variant has a partner by {', '.join(keys)}: {counts}; name one run")
    unmatched = [
        f"{_words(keys, values)} is only in {side.name}"
        for side, own in zip((a, b), sides, strict=True)
        for values in own
        if values not in common
    ]
    cells = []
    for values in common:
        variant = dict(zip(keys, values, strict=True))
        cell, alone = _cell(variant, (a, b), [own[values] for own in sides])
        cells.append(cell)
        unmatched += alone
    return Pairing(cells, unmatched)


def _variants(side: Side, keys: Sequence[str]) -> dict[tuple[str, ...], list[Run]]:
    """Values of the keys -> the runs that have them."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for row in side.runs.to_dict("records"):
        values = tuple(text(row.get(key)) for key in keys)
        found.setdefault(values, []).append(Run(row["path"], row))
    return found


def _cell(
    variant: Mapping[str, str], sides: tuple[Side, Side], runs: Sequence[list[Run]]
) -> tuple[Cell, list[str]]:
    """The runs of one variant, paired; and those that have no partner, in words."""
    if all(len(own) == 1 for own in runs):
        return Cell(variant, (_replicates(runs[0])[0],), (runs[0][0],), (runs[1][0],)), []
    names = [_replicates(own) for own in runs]
    if any(len(set(own)) < len(own) for own in names):  # no seeds, or one seed several times
        names = [[run.path.name for run in own] for own in runs]
        if not set(names[0]) & set(names[1]):
            count = " and ".join(
                f"{s.name} has {len(own)}" for s, own in zip(sides, runs, strict=True)
            )
            where = f" with {_words(list(variant), list(variant.values()))}" if variant else ""
            raise Unreadable(
                f"pairing is ambiguous: of the runs{where}, which no seed tells apart, {count}; "
                "name one run of each"
            )
    both = [seed for seed in names[0] if seed in names[1]]
    if not both:
        return Cell(variant, (), tuple(runs[0]), tuple(runs[1])), []
    by_name = [dict(zip(n, own, strict=True)) for n, own in zip(names, runs, strict=True)]
    where = f" of {', '.join(variant.values())}" if variant else ""
    alone = [
        f"seed {seed}{where} is only in {side.name}"
        for side, own in zip(sides, names, strict=True)
        for seed in own
        if seed not in both
    ]
    first, second = (tuple(own[seed] for seed in both) for own in by_name)
    return Cell(variant, tuple(both), first, second), alone


def _replicates(runs: Sequence[Run]) -> list[str]:
    """The seed of each run as text."""
    return [text(run.row.get("seed")) for run in runs]


def _words(keys: Sequence[str], values: Sequence[str]) -> str:
    return ", ".join(f"{k}={v}" for k, v in zip(keys, values, strict=True))


def text(value: Any) -> str:
    """A value of a config in words; a number is written as it would be typed."""
    if value is None or (isinstance(value, float) and value != value):
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
