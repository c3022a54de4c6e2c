"""The words at the beginning and at the end of a sweep, and the exit code."""

import shlex
import signal
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stability.results.schema import LOG_FILE, RUN_FILE
from stability.sweep import resume
from stability.sweep.grid import Cell
from stability.sweep.pool import Outcome
from stability.sweep.progress import COLOURS

FAILED = 1

NUMBERS = {
    "final_val_loss": "validation\nloss",
    "variance_growth": "variance\ngrowth",
    "grad_ratio": "gradient\nratio",
    "grad_ratio_median": "median\ntoken's",
    "final_loss": "training\nloss",
}
"""Columns of the final table, as many as there is room for; docs/data.md says what they are."""

NUMBER, STATUS = 11, 13
"""Characters of a column of numbers and of the status, with the space beside it."""

NAME = 24
"""Characters that are left for the names of runs, at least."""


class Finished(Exception):
    """The sweep is over and its exit code is not 0."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def announce(cells: Sequence[Cell], waiting: Sequence[Cell], console: Console) -> None:
    """How many runs there are, and how many are done already."""
    infos = [resume.read(cell.folder) for cell in waiting]
    begun = [info["status"] for info in infos if info is not None]
    parts = [f"{len(cells)} run{'s' * (len(cells) != 1)}"]
    if done := len(cells) - len(waiting):
        shard = cells[0].config.shard
        parts.append(f"{done} done already" if shard is None else f"{done} done or of other shards")
    if begun:
        parts.append(f"{len(begun)} to continue ({begun.count('failed')} had failed)")
    console.print(f"{cells[0].folder.parent}: {', '.join(parts)}", highlight=False)


def conclude(
    cells: Sequence[Cell],
    outcomes: Mapping[str, Outcome],
    named: bool,
    stopped: int | None,
    console: Console,
) -> None:
    """Print what became of every run, and how to go on.

    Args:
        cells: all runs of the sweep.
        outcomes: by hash, for those that this command has started.
        named: whether the user chose the sweep's name.
        stopped: the signal that ended the sweep, if one did.
        console: where to print.

    Raises:
        Finished: a run has failed, or the sweep was stopped.
    """
    sweep = cells[0].folder.parent
    if any((cell.folder / RUN_FILE).exists() for cell in cells):
        from stability.results import index  # pandas: not needed before

        runs = index.index(sweep)
        console.print(_table(cells, runs.set_index("run"), outcomes, console.width))
        for why in runs.attrs["damaged"].values():
            console.print(f"{escape(why)}; without its folder the run is made again")
    failed = [c for c in cells if c.run in outcomes and outcomes[c.run].kind == "failed"]
    for cell in failed:
        console.print(_failure(cell, outcomes[cell.run]), soft_wrap=True)
    for cell in cells:
        if cell.run in outcomes and outcomes[cell.run].kind == "held":
            console.print(f"{escape(cell.title)} {escape(outcomes[cell.run].cause)}")
    console.print(f"files:   {escape(str(sweep))}", soft_wrap=True, highlight=False)
    console.print(f"figures: python -m stability.plot {shlex.quote(str(sweep))}", soft_wrap=True)
    if not named:
        typed = [a for a in sys.argv[1:] if a not in ("-m", "--multirun")]
        again = shlex.join([*typed, f"name={sweep.name}"])
        console.print(f"resume:  python -m stability.run {again}", soft_wrap=True, markup=False)
    elif failed or stopped is not None:
        console.print("resume:  the same command again; it runs only what is not finished")
    if stopped is not None:
        raise Finished(128 + (stopped if stopped == signal.SIGINT else signal.SIGTERM))
    if failed:
        raise Finished(FAILED)


def _table(cells: Sequence[Cell], runs: Any, outcomes: Mapping[str, Outcome], width: int) -> Table:
    """A row a run; in a narrow terminal fewer numbers, and names over several lines."""
    room = max(0, width - NAME - STATUS) // NUMBER
    shown = dict(list(NUMBERS.items())[:room])
    table = Table("run", "status", box=None, pad_edge=False)
    for title in shown.values():
        table.add_column(title, justify="right")
    for cell in cells:
        name = _folded(cell.folder.name, width - STATUS - NUMBER * len(shown))
        row = runs.loc[cell.run] if cell.run in runs.index else None
        status = _status(cell, row, outcomes)
        numbers = ["-" if row is None else _number(row[key]) for key in shown]
        table.add_row(escape(name), f"[{COLOURS.get(status, 'white')}]{status}[/]", *numbers)
    return table


def _status(cell: Cell, row: Any, outcomes: Mapping[str, Outcome]) -> str:
    """What this command saw counts for more than the run's file, which a full disk keeps as it was.

    A run that is on disk but not in the index cannot be read.
    """
    if cell.run in outcomes and outcomes[cell.run].kind in ("failed", "interrupted"):
        return outcomes[cell.run].kind
    if row is None:
        return "unreadable" if (cell.folder / RUN_FILE).exists() else "not started"
    return str(row["status"])


def _folded(name: str, width: int) -> str:
    """A name in lines of at most `width` characters, broken after a '_' where there is one."""
    if len(name) <= width:
        return name
    lines = textwrap.wrap(name.replace("_", "_ "), max(1, width), break_on_hyphens=False)
    return "\n".join(line.replace(" ", "") for line in lines)


def _number(value: Any) -> str:
    return "-" if value is None or value != value else f"{value:.4g}"


def _failure(cell: Cell, outcome: Outcome) -> str:
    """A failed run, its cause, and its log where it came to have one."""
    log = cell.folder / LOG_FILE
    where = f"  ({log})" if log.exists() else ""
    return f"[red]failed:[/]  {escape(f'{cell.title}: {outcome.cause}{where}')}"
