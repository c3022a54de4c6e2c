"""What the person at the terminal sees while a sweep runs, and the table at its end.

In a terminal: a bar for the sweep with the time left, and a line for each run that is going on.
Else nothing but one line for each run that ends.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from stability import shell
from stability.config.knobs import Config
from stability.sweep.grid import Cell
from stability.sweep.pool import Outcome

T = TypeVar("T")

MANY = 20
"""Runs from which on composing them takes long enough to be shown."""

WIDEST = 40
"""Characters of a run's title beside its bar."""

FILE_WIDTH = 180
"""Characters of a line where the output is no terminal."""

COLOURS = {"completed": "green", "diverged": "yellow", "failed": "red", "interrupted": "magenta"}


class Screen(Console):
    """A console whose reader may go, or whose disk may be full: the sweep goes on unseen."""

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        shell.silence()


def console() -> Console:
    """Where a sweep shows itself; lines are not folded in a file."""
    made = Screen(highlight=False)
    return made if made.is_terminal else Screen(highlight=False, width=FILE_WIDTH)


def track(items: Sequence[T], what: str, console: Console) -> Iterable[T]:
    """Iterate with a bar, where there is a terminal and enough to wait for."""
    if len(items) < MANY:
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
    """Follows the runs of a sweep.

    Args:
        cells: those that are going to run.
        console: where it shows them.
    """

    def __init__(self, cells: Sequence[Cell], console: Console) -> None:
        self._console = console
        self._shares = {cell.run: 0.0 for cell in cells}
        self._costs = {cell.run: cost(cell.config) for cell in cells}
        self._ended = 0
        self._stopping = False
        self._live: dict[str, TaskID] = {}
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
        return f"[bold]{self._ended} of {len(self._costs)} runs"

    def started(self, cell: Cell) -> None:
        """A run has begun."""
        self._live[cell.run] = self._progress.add_task(
            escape(cell.title[:WIDEST]),
            total=max(1, cell.config.train.steps),
            note="starting",
        )

    def report(self, cell: Cell, row: dict[str, Any]) -> None:
        """Numbers of one step have come."""
        task = self._live[cell.run]
        self._progress.update(task, completed=row["step"], note=numbers(row))
        self._share(cell, row["step"] / max(1, row["steps"]))

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        """A run is over, in whatever way; an interrupted one is not done."""
        if cell.run in self._live:
            self._progress.remove_task(self._live.pop(cell.run))
        position = ""
        if outcome.kind != "interrupted":
            self._ended += 1
            position = f"[{self._ended}/{len(self._costs)}] "
            self._share(cell, 1.0)
        self._console.print(f"{escape(position)}{escape(cell.title)}  {ending(outcome)}")

    def stopping(self, runs: int) -> None:
        """Runs were asked to stop, and write their checkpoints."""
        self._stopping = True
        self._progress.update(self._sweep, note="stopping")
        who = "1 run writes its checkpoint" if runs == 1 else f"{runs} runs write checkpoints"
        self._console.print(f"stopping: {who}; Ctrl-C now does not wait for it")

    def _share(self, cell: Cell, share: float) -> None:
        self._shares[cell.run] = share
        done = sum(self._costs[run] * part for run, part in self._shares.items())
        done /= sum(self._costs.values())
        elapsed = self._progress.tasks[0].elapsed or 0.0
        left = f"{duration(elapsed / done * (1 - done))} left" if done > 0 and elapsed > 1 else ""
        note = "stopping" if self._stopping else left
        self._progress.update(self._sweep, completed=done, description=self._counted(), note=note)


def cost(config: Config) -> float:
    """Work of a run, to weigh runs by: about 12 d^2 L multiplications a token, and the head's."""
    model, train = config.model, config.train
    width = model.width
    per_token = 12 * width**2 * config.depth + width * 256
    return float((train.steps + 1) * train.batch_size * model.context * per_token)


def numbers(row: Mapping[str, Any]) -> str:
    """The numbers of a step in one line."""
    parts = [f"step {row['step']}/{row['steps']}", f"loss {row['loss']:.3f}"]
    parts.append(f"|grad| {row['grad_norm']:.3g}")
    parts.append(f"{row['tokens_per_s']:,.0f} tokens/s")
    return "  ".join(parts)


def ending(outcome: Outcome) -> str:
    """How a run ended, in a few words."""
    info = outcome.info
    if outcome.kind == "held" or info is None:
        return f"[red]{outcome.kind}[/]  {escape(outcome.cause)}"
    status = f"[{COLOURS.get(info['status'], 'white')}]{info['status']}[/]"
    if outcome.cause:
        return f"{status}  {escape(outcome.cause)}"
    loss = "" if info["final_loss"] is None else f"  training loss {info['final_loss']:.4g}"
    return f"{status}{loss}  {duration(info['seconds'])}"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"
