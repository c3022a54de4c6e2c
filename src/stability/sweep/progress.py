"""What a sweep shows while it runs.

In a terminal: a bar for the sweep with the time left, and a bar for each run that is going on.
Elsewhere: one line for each run that ends.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from stability import shell
from stability.sweep.grid import Cell
from stability.sweep.pool import RunEnd
from stability.sweep.shards import cost
from stability.sweep.time_left import TimeLeft

T = TypeVar("T")

MIN_TRACKED = 20
"""Items from which on a loop takes long enough to be shown."""

TITLE_WIDTH = 40
"""Characters of a run's title beside its bar."""

FILE_WIDTH = 180
"""Characters of a line where the output is no terminal."""

MIN_ENDED = 2
"""Runs that have to end before the time left is said: the first ones may be unlike the rest."""


def coloured(status: str, learned: bool | None) -> str:
    """A status with rich's markup: green where the net has learned, red where something broke."""
    colours = {"diverged": "red", "failed": "red", "held": "red", "interrupted": "yellow"}
    colour = "green" if status == "completed" and learned else colours.get(status, "default")
    return f"[{colour}]{status}[/]"


class SweepConsole(Console):
    """A console that falls silent when stdout is closed or its disk is full: the sweep goes on."""

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        shell.discard_stdout()


def console() -> Console:
    """Where a sweep is shown; in a file, lines are not folded."""
    made = SweepConsole(highlight=False)
    return made if made.is_terminal else SweepConsole(highlight=False, width=FILE_WIDTH)


def track(items: Sequence[T], what: str, console: Console) -> Iterable[T]:
    """Iterate with a bar, in a terminal and if there are enough items."""
    if len(items) < MIN_TRACKED:
        return items
    if not console.is_terminal:
        console.print(f"{what} {len(items)} runs")
        return items
    return _bar(items, what, console)


def _bar(items: Sequence[T], what: str, console: Console) -> Iterator[T]:
    columns = (TextColumn(what), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, console=console, transient=True) as bar:
        yield from bar.track(items)


class Display:
    """Shows the runs of a sweep as they go on; an observer of the pool.

    Args:
        cells: those that are going to run.
        console: where they are shown.
    """

    def __init__(self, cells: Sequence[Cell], console: Console) -> None:
        self._console = console
        self._done = {cell.run: 0.0 for cell in cells}
        self._costs = {cell.run: cost(cell.config) for cell in cells}
        self._time_left = TimeLeft(self._costs)
        self._count = 0
        self._stopping = False
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._sweep = self._progress.add_task(self._counted(), total=1.0, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def _counted(self) -> str:
        return f"[bold]{self._count} of {len(self._costs)} runs"

    def started(self, cell: Cell) -> None:
        """Add a bar for a run."""
        self._time_left.started(cell.run)
        self._bars[cell.run] = self._progress.add_task(
            escape(cell.title[:TITLE_WIDTH]),
            total=max(1, cell.config.train.steps),
            note="starting",
        )

    def report(self, cell: Cell, row: dict[str, Any]) -> None:
        """Show the numbers of one step."""
        task = self._bars[cell.run]
        self._progress.update(task, completed=row["step"], note=numbers(row))
        share = row["step"] / max(1, row["steps"])
        self._time_left.reported(cell.run, share)
        self._advance(cell, share)

    def ended(self, cell: Cell, end: RunEnd) -> None:
        """Say how a run ended; an interrupted run does not count as done."""
        if cell.run in self._bars:
            self._progress.remove_task(self._bars.pop(cell.run))
        position = ""
        if end.kind != "interrupted":
            self._count += 1
            made = 0 if end.info is None else end.info.get("steps_done") or 0
            self._time_left.ended(cell.run, made / max(1, cell.config.train.steps))
            position = f"[{self._count}/{len(self._costs)}] "
            self._advance(cell, 1.0)
        self._console.print(f"{escape(position)}{escape(cell.title)}  {describe(end)}")

    def stopping(self, runs: int) -> None:
        """Say that runs were asked to stop and write their checkpoints."""
        self._stopping = True
        self._progress.update(self._sweep, note="stopping")
        what = "1 run writes its checkpoint" if runs == 1 else f"{runs} runs write checkpoints"
        self._console.print(f"stopping: {what}; press Ctrl-C again to quit without waiting")

    def _advance(self, cell: Cell, share: float) -> None:
        """Note which share of a run is done, and say how much time is left."""
        self._done[cell.run] = share
        done = sum(self._costs[run] * part for run, part in self._done.items())
        done /= sum(self._costs.values())
        enough = self._count >= min(MIN_ENDED, len(self._costs) - 1)
        seconds = self._time_left.seconds() if enough else None
        left = "" if seconds is None else f"about {duration(seconds)} left"
        note = "stopping" if self._stopping else left
        self._progress.update(self._sweep, completed=done, description=self._counted(), note=note)


def numbers(row: Mapping[str, Any]) -> str:
    """The numbers of a step in one line."""
    parts = [f"step {row['step']}/{row['steps']}", f"loss {row['loss']:.3f}"]
    parts.append(f"|grad| {row['grad_norm']:.3g}")
    parts.append(f"{row['tokens_per_s']:,.0f} tokens/s")
    return "  ".join(parts)


def describe(end: RunEnd) -> str:
    """How a run ended, in a few words."""
    info = end.info
    if end.kind == "held" or info is None:
        return f"[red]{end.kind}[/]  {escape(end.cause)}"
    status = coloured(info["status"], info.get("learned"))
    if end.cause:
        return f"{status}  {escape(end.cause)}"
    loss = "" if info["final_loss"] is None else f"  training loss {info['final_loss']:.4g}"
    unlearned = ", not learned" if info.get("learned") is False else ""
    return f"{status}{unlearned}{loss}  {duration(info['seconds'])}"


def duration(seconds: float) -> str:
    """Seconds in the units that one would say."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"
