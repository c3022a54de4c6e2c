"""`compare`: in what two runs or two sweeps differ."""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from stability.difference import curves, numbers
from stability.difference.config_keys import differing_keys
from stability.difference.first_difference import OF_RUNS, Difference, Tables, Value, difference
from stability.difference.numbers import Stat
from stability.difference.pairing import Cell, Run, Side, pair, read_sides
from stability.figures.drawing.notebook import png

NONE = "none"
"""Stands for an empty part in the text."""


@dataclass(frozen=True)
class PairDifference:
    """How the two runs of one pair differ."""

    cell: Cell
    seed: str
    a: Run
    b: Run
    found: Difference

    @property
    def label(self) -> str:
        """Variant and seed."""
        seed = f"seed {self.seed}" if self.seed != "none" else ""
        return ", ".join(filter(None, [self.cell.label, seed])) or self.a.path.name


@dataclass(frozen=True, repr=False)
class Comparison:
    """What `compare` found. Prints as text; in a notebook it shows tables and the figure."""

    a: Side
    b: Side
    stat: Stat
    cells: tuple[Cell, ...]
    steps: tuple[int, ...]
    """Of each cell: the step of its numbers, the last that all its runs recorded."""
    config: pd.DataFrame
    """Keys that differ: ``key``, ``a``, ``b``."""
    numbers: pd.DataFrame
    """Numbers beside each other, see `numbers.table`."""
    pairs: tuple[PairDifference, ...]
    """How the runs of each pair differ, bit for bit."""
    notes: tuple[str, ...] = field(default=())
    """What has no partner, what is unfinished, and which runs differ in length."""

    @cached_property
    def differences(self) -> pd.DataFrame:
        """One row per pair: where loss and layers first differ, and by how much at most."""
        return pd.DataFrame(
            {
                "pair": [p.label for p in self.pairs],
                "first in loss": [_place(p.found.loss) for p in self.pairs],
                "first in layers": [_place(p.found.layers) for p in self.pairs],
                "largest": [_largest(p.found) for p in self.pairs],
                "largest in": [_place(p.found.largest) for p in self.pairs],
            }
        )

    @cached_property
    def curves(self) -> pd.DataFrame:
        """The numbers that the figure draws."""
        return curves.curves(self.cells, self.steps, self.stat)

    @property
    def figure(self) -> Figure:
        """Loss by step and the statistic by depth, both sides over each other."""
        sides = (self.a, self.b)
        return curves.draw(self.curves, sides, self.cells, self.steps, self.stat)

    def is_within(self, tolerance: float) -> bool:
        """Whether the runs of every pair agree.

        Args:
            tolerance: largest relative difference of any statistic or loss; 0 asks for the same
                bits. A step or a row that only one side has is a difference at any tolerance.

        Raises:
            ValueError: the tolerance is negative, or no run has a partner.
        """
        if not tolerance >= 0:
            raise ValueError(f"tolerance {tolerance}: must be at least 0")
        if not self.pairs:
            raise ValueError("no run has a partner, so that none can be checked")
        return not self.unmatched and all(p.found.is_within(tolerance) for p in self.pairs)

    unmatched: tuple[str, ...] = ()
    """Variants and seeds that only one side has."""

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"A: {self.a.path} ({_count(self.a)})"
        yield f"B: {self.b.path} ({_count(self.b)})"
        yield from (f"note: {note}" for note in (*self.unmatched, *self.notes))
        yield f"\nconfig: {_table(self.config)}"
        yield f"\nnumbers (difference B - A, 95% interval): {_table(self._shown_numbers())}"
        yield f"\nfirst difference: {_table(self.differences)}"

    def _shown_numbers(self) -> pd.DataFrame:
        """The numbers as text, without columns that say nothing."""
        shown = self.numbers.copy()
        shown["step"] = shown["step"].astype(object).where(shown["step"].notna(), "end")
        if shown["paired"].all():
            shown = shown.drop(columns="paired")
        return shown.drop(columns=["low", "high"]) if shown["low"].isna().all() else shown

    def _repr_html_(self) -> str:
        """Tables and figure for a notebook."""
        from html import escape

        text = "".join(f"<p>{escape(line)}</p>" for line in self._head())
        tables = "".join(
            f"<h4>{title}</h4>{frame.to_html(index=False, border=0, na_rep='', escape=True)}"
            for title, frame in (
                ("Config", self.config),
                ("Numbers", self._shown_numbers()),
                ("First difference", self.differences),
            )
        )
        image = base64.b64encode(png(self.figure)).decode()
        return f'{text}{tables}<img src="data:image/png;base64,{image}" width="675">'

    def _head(self) -> list[str]:
        sides = [f"{n}: {s.path} ({_count(s)})" for n, s in (("A", self.a), ("B", self.b))]
        return [*sides, *self.unmatched, *self.notes]


def compare(a: str | Path, b: str | Path, stat: str = "act.var") -> Comparison:
    """In what two runs or two sweeps differ.

    Variants are matched by the keys that vary within either side, and their runs by seed, so that
    differences have the interval of paired samples. Recordings of external loops, which have no
    seed, are matched by the names of their folders; two single runs are always a pair.

    Args:
        a: a run, or a sweep.
        b: another one.
        stat: the statistic of the residual stream that is compared by depth, ``KIND.COLUMN``: kind
            ``act`` or ``grad``, and a column of the layers table.

    Raises:
        Unreadable: a folder holds no run, the pairing is ambiguous, no step was recorded by all, or
            there is no such statistic. The message is one line.
    """
    chosen = Stat.parse(stat)
    sides = read_sides(Path(a), Path(b))
    cells, unmatched = pair(*sides)
    steps = [numbers.last_common_step(cell, *sides) for cell in cells]
    pairs = tuple(_pairs(cells))
    said = [f"{side.name}: {remark}" for side in sides for remark in side.remarks]
    return Comparison(
        *sides,
        stat=chosen,
        cells=tuple(cells),
        steps=tuple(steps),
        config=differing_keys(*sides),
        numbers=numbers.table(cells, steps, chosen),
        pairs=pairs,
        notes=(*said, *_unshared(pairs)),
        unmatched=tuple(unmatched),
    )


def _pairs(cells: Sequence[Cell]) -> Iterator[PairDifference]:
    for cell in cells:
        for seed, a, b in zip(cell.seeds, cell.a, cell.b, strict=False):
            finals = pd.DataFrame([{n: run.row.get(n) for n in OF_RUNS} for run in (a, b)])
            found = difference(Tables.read(a.path), Tables.read(b.path), finals.astype(float))
            yield PairDifference(cell, seed, a, b, found)


def _unshared(pairs: Sequence[PairDifference]) -> list[str]:
    """What only one run of a pair has; said once where all pairs are alike."""
    by: dict[str, list[str]] = {}
    for p in pairs:
        for text in p.found.unshared:
            by.setdefault(text, []).append(p.label)
    return [
        text if len(labels) == len(pairs) else f"{text} ({'; '.join(labels)})"
        for text, labels in by.items()
    ]


def _place(value: Value | None) -> str:
    return NONE if value is None else f"{value.place}: {value.a!r} | {value.b!r}"


def _largest(found: Difference) -> str:
    if found.largest is None:
        return "0"
    return f"{found.largest.relative:.2g}"


def _count(side: Side) -> str:
    return f"{len(side.runs)} run{'s' * (len(side.runs) != 1)}"


def _table(frame: pd.DataFrame) -> str:
    """A table below its title."""
    if frame.empty:
        return NONE
    text = frame.to_string(index=False, na_rep="", float_format="{:.6g}".format, justify="left")
    return "\n" + "\n".join(f"  {line}" for line in text.splitlines())
