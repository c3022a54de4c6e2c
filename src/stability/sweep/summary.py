"""What a sweep prints at its beginning and its end, and its exit code."""

import math
import shlex
import signal
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stability.results.schema import LEARNED_MARGIN, LOG_FILE, RUN_FILE
from stability.results.score_resolution import ROUNDING, UNRESOLVED
from stability.results.statistics import SUBNORMAL
from stability.sweep import resume
from stability.sweep.cautions import cautions
from stability.sweep.grid import Cell
from stability.sweep.pool import RunEnd
from stability.sweep.progress import coloured

FAILED = 1
"""Exit code of a sweep in which a run failed."""

COLUMNS = {
    "final_val_loss": "validation\nloss",
    "variance_growth": "variance\ngrowth",
    "grad_ratio_median": "gradient,\nmedian",
    "grad_ratio": "gradient,\nall",
    "final_loss": "training\nloss",
}
"""Columns of the final table, as many as there is room for."""

LEGEND = {
    "variance_growth": "variance growth: Var(x_L)/Var(x_1), x_l the residual stream after block l",
    "grad_ratio_median": "gradient: |dloss/dx_1| / |dloss/dx_L|, for the median token and for all",
}
"""What a column shows, printed below the table; all at the last recorded step."""

MAX_DIVERGED = 3
"""Diverged runs whose first non-finite tensor is printed."""

NUMBER_WIDTH, STATUS_WIDTH = 11, 13
"""Characters of a column of numbers and of the status, with the space beside it."""

MIN_NAME_WIDTH = 24
"""Characters that are left for the names of runs, at least."""


def announce(cells: Sequence[Cell], waiting: Sequence[Cell], console: Console) -> None:
    """Print how many runs there are, and how many are done already."""
    infos = [resume.read(cell.folder) for cell in waiting]
    started = [info["status"] for info in infos if info is not None]
    parts = [f"{len(cells)} run{'s' * (len(cells) != 1)}"]
    if done := len(cells) - len(waiting):
        shard = cells[0].config.shard
        parts.append(f"{done} done already" if shard is None else f"{done} done or of other shards")
    if started:
        parts.append(f"{len(started)} to continue ({started.count('failed')} had failed)")
    console.print(f"{cells[0].folder.parent}: {', '.join(parts)}", highlight=False)
    for caution in cautions(cell.config for cell in waiting):
        console.print(f"  warning: {caution}", style="yellow", highlight=False)


def conclude(
    cells: Sequence[Cell],
    ends: Mapping[str, RunEnd],
    named: bool,
    stopped: int | None,
    console: Console,
) -> int:
    """Print how every run ended, and how to go on.

    Args:
        cells: all runs of the sweep.
        ends: by hash, of those runs that this command has started.
        named: whether the user chose the sweep's name.
        stopped: the signal that ended the sweep, if one did.
        console: where to print.

    Returns:
        The exit code: 0, `FAILED` where a run has failed, 128 + the signal that ended the sweep.
    """
    sweep = cells[0].folder.parent
    if any((cell.folder / RUN_FILE).exists() for cell in cells):
        from stability.results import index  # pandas: not needed before

        found = index.index(sweep)
        runs = found.runs.set_index("run")
        console.print(_table(cells, runs, ends, console.width))
        for line in _legend(runs):
            console.print(line, highlight=False)
        for line in (*_diverged(cells, runs), *_unresolved(cells, runs), *_slowed(cells, runs)):
            console.print(line, soft_wrap=True, highlight=False)
        for reason in found.damaged.values():
            console.print(f"{escape(reason)}; delete its folder to run it again")
    interrupted = any(_kind(cell, ends) == "interrupted" for cell in cells)
    failed = [cell for cell in cells if _kind(cell, ends) == "failed"]
    for cell in failed:
        console.print(_failure(cell, ends[cell.run]), soft_wrap=True)
    for cell in cells:
        if _kind(cell, ends) == "held":
            console.print(f"{escape(cell.title)} {escape(ends[cell.run].cause)}")
    console.print(f"files:   {escape(str(sweep))}", soft_wrap=True, highlight=False)
    console.print(f"figures: python -m stability.plot {shlex.quote(str(sweep))}", soft_wrap=True)
    if not named:
        typed = [word for word in sys.argv[1:] if word not in ("-m", "--multirun")]
        again = shlex.join([*typed, f"name={sweep.name}"])
        console.print(f"resume:  python -m stability.run {again}", soft_wrap=True, markup=False)
    elif failed or interrupted or stopped is not None:
        console.print("resume:  the same command again; it runs only what is not finished")
    if stopped is not None:
        return 128 + (stopped if stopped == signal.SIGINT else signal.SIGTERM)
    if failed:
        return FAILED
    return 128 + signal.SIGTERM if interrupted else 0  # a job of a launcher, by its own signal


def _kind(cell: Cell, ends: Mapping[str, RunEnd]) -> str | None:
    return ends[cell.run].kind if cell.run in ends else None


def _table(cells: Sequence[Cell], runs: Any, ends: Mapping[str, RunEnd], width: int) -> Table:
    """A row for each run; a narrow terminal gets fewer numbers, and names over several lines."""
    room = max(0, width - MIN_NAME_WIDTH - STATUS_WIDTH) // NUMBER_WIDTH
    known = [key for key in COLUMNS if runs[key].notna().any()]
    shown = known[:room]
    table = Table("run", "status", box=None, pad_edge=False)
    for key in shown:
        table.add_column(COLUMNS[key], justify="right")
    for cell in cells:
        name = _wrapped(cell.folder.name, width - STATUS_WIDTH - NUMBER_WIDTH * len(shown))
        row = runs.loc[cell.run] if cell.run in runs.index else None
        numbers = ["-" if row is None else _number(row[key]) for key in shown]
        learned = None if row is None or row["learned"] is None else bool(row["learned"])
        status = coloured(_status(cell, row, ends), learned)
        if learned is False:
            status += "\nnot learned"
        table.add_row(escape(name), status, *numbers)
    return table


def _legend(runs: Any) -> Iterator[str]:
    """What the columns show."""
    entropies = sorted(runs["data.unigram_entropy"].dropna().unique())
    if entropies and runs["final_val_loss"].notna().any():
        values = " or ".join(f"{value:.4g}" for value in entropies)
        yield f"losses in nats; learned: {LEARNED_MARGIN} below the unigram entropy ({values})"
    yield from (line for key, line in LEGEND.items() if runs[key].notna().any())


def _diverged(cells: Sequence[Cell], runs: Any) -> Iterator[str]:
    """Where the first runs broke that diverged, and the command that shows how."""
    broken = [c for c in cells if c.run in runs.index and runs.loc[c.run, "status"] == "diverged"]
    for cell in broken[:MAX_DIVERGED]:
        outcome = str(runs.loc[cell.run, "outcome"])
        yield f"[red]diverged:[/] {escape(f'{cell.title}: {outcome}')}"
        folder = shlex.quote(str(cell.folder))
        yield f"          python -m stability.replay {escape(folder)}"
    if len(broken) > MAX_DIVERGED:
        yield f"          and {len(broken) - MAX_DIVERGED} more; run.json says where each broke"


def _unresolved(cells: Sequence[Cell], runs: Any) -> list[str]:
    """What to say of runs whose number format does not resolve attention's scores."""
    lost: list[str] = []
    rough: list[str] = []
    for cell in cells:
        share = runs.loc[cell.run, "score_eps"] or 0.0 if cell.run in runs.index else 0.0
        fused = cell.config.model.attention == "fused"
        if share > UNRESOLVED:
            (lost if fused and share > ROUNDING else rough).append(f"{cell.title} {share:.2g}")
    said = {
        "are rounding error of the fused kernel (see model.attention)": lost,
        "are right in their order of magnitude at best": rough,
    }
    return [
        "Their number format does not resolve attention's scores (largest |score| eps: "
        f"{escape(', '.join(names))}): gradients {what}."
        for what, names in said.items()
        if names
    ]


def _slowed(cells: Sequence[Cell], runs: Any) -> list[str]:
    """What to say of runs on a CPU whose gradients held subnormal numbers.

    Those of fp16 are normal numbers in fp32, in which a CPU computes.
    """
    shares = {
        cell.title: runs.loc[cell.run, "grad_subnormal"] or 0.0  # None: no gradient was recorded
        for cell in cells
        if cell.run in runs.index
        and str(runs.loc[cell.run, "device"]).startswith("cpu")
        and not cell.config.dtype.endswith("fp16")
    }
    named = [f"{name} {share:.0%}" for name, share in shares.items() if share > SUBNORMAL]
    if not named:
        return []
    return [
        f"Gradients hold subnormal numbers (largest share: {escape(', '.join(named))}). They can"
        " slow a CPU down several times. flush_subnormal=true computes with 0 in their place."
    ]


def _status(cell: Cell, row: Any, ends: Mapping[str, RunEnd]) -> str:
    """The status of a run: what this command saw, else what run.json says.

    A full disk may have kept run.json as it was. A run that is on disk but not in the index cannot
    be read.
    """
    kind = _kind(cell, ends)
    if kind in ("failed", "interrupted"):
        return kind
    if row is None:
        return "unreadable" if (cell.folder / RUN_FILE).exists() else "not started"
    return str(row["status"])


def _wrapped(name: str, width: int) -> str:
    """A name in lines of at most `width` characters, broken after a '_' if it has one."""
    if len(name) <= width:
        return name
    lines = textwrap.wrap(name.replace("_", "_ "), max(1, width), break_on_hyphens=False)
    return "\n".join(line.replace(" ", "") for line in lines)


def _number(value: Any) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"


def _failure(cell: Cell, end: RunEnd) -> str:
    """A failed run, its cause, and its log if it has one."""
    log = cell.folder / LOG_FILE
    where = f"  ({log})" if log.exists() else ""
    return f"[red]failed:[/]  {escape(f'{cell.title}: {end.cause}{where}')}"
