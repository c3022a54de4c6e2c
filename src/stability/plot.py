"""The command ``python -m stability.plot PATH``: figures for every sweep found below a path.

Beside each figure lie the numbers it draws (csv) and what it was made from (json). Starts in a
second: needs neither torch nor hydra.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import NoReturn, get_args

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress

from stability import figures, shell
from stability.config.suggestions import must_be_one_of
from stability.figures.drawing import notes
from stability.figures.drawing.files import origin, save
from stability.figures.drawing.select import CannotDraw
from stability.figures.drawing.style import WIDTHS
from stability.figures.drawing.view import Font, Style, View, XScale, seen
from stability.results.atomic import Unreadable
from stability.results.frames import Where, load, sweep_rows
from stability.results.index import sweeps
from stability.results.runs_chosen import only
from stability.results.schema import FIGURES_FOLDER, RUN_FILE, RUNS_FILE, THEORY_FOLDER
from stability.results.stream import stacks_apart
from stability.results.sweep_rows import SweepRows
from stability.theory.run_theory import SweepTheory, theory_of_sweep
from stability.web import sweep_page
from stability.web.sweep_page import PageFigure

FORMATS = ("pdf", "png", "svg")
MAX_SECONDS = 86_400


@shell.quiet_exit
def main(argv: Sequence[str] | None = None) -> int:
    """Draw what is asked for; 0 if something was drawn, 2 with a line of reason if not."""
    args = _parser().parse_args(argv)
    words = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "-m", "stability.plot", *words])
    console = Console(soft_wrap=True, highlight=False)
    chosen = View(
        args.x, args.own_colours, args.style, args.font, _words(args.weights), _words(args.panels)
    )
    with seen(chosen):
        if args.watch:
            return _watch(args, command, console)
        return _draw_all(args, command, console)


def _watch(args: argparse.Namespace, command: str, console: Console) -> NoReturn:
    """Draw whenever runs have written something, until Ctrl-C; the page reloads itself."""
    drawn = None
    while True:
        if (now := _written(args.path)) != drawn:
            _draw_all(args, command, console)
            drawn = now
        time.sleep(args.watch)


def _written(path: Path) -> tuple[int, int]:
    """How many files the runs below a path have, and when the last one was written."""
    times = []
    for name in (RUN_FILE, "*.parquet"):
        for file in path.rglob(name):
            with suppress(OSError):  # it was replaced in this moment
                if file.name != RUNS_FILE and FIGURES_FOLDER not in file.parts:
                    times.append(file.stat().st_mtime_ns)
    return len(times), max(times, default=0)


def _draw_all(args: argparse.Namespace, command: str, console: Console) -> int:
    """What `main` does, with the options parsed."""
    try:
        wanted = _wanted(args.figures)
        found = sweeps(args.path)
        drawn = 0
        for sweep, folders in found.items():
            out = _out(sweep, args.out, alone=len(found) == 1)
            try:
                plotter = SweepPlotter(sweep, folders, args, out, console)
            except Unreadable as error:
                _complain(error)
                continue
            drawn += plotter.draw(wanted, command)
    except Unreadable as error:
        _complain(error)
        return 2
    if not drawn:
        _complain(f"{args.path}: nothing could be drawn, see above")
        return 2
    return 0


def _words(text: str) -> tuple[str, ...]:
    """The words of a list with commas."""
    return tuple(filter(None, text.split(",")))


def _out(sweep: Path, out: Path | None, alone: bool) -> Path:
    """Where a sweep's figures go."""
    if out is None:
        return sweep / FIGURES_FOLDER
    return out if alone else out / sweep.name


def _complain(reason: object) -> None:
    print(f"stability.plot: {reason}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = shell.command_parser("plot", "Draw the figures of every sweep found below PATH.")
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="a run, a sweep, or a folder of them"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(["figures:", *map(_described, figures.modules().items())])
    parser.add_argument("--figures", metavar="A,B", help="which of those below (default: all)")
    parser.add_argument(
        "--watch", type=_seconds, default=0, metavar="SECONDS",
        help="draw again when runs have gone on, and let index.html reload itself; ends by Ctrl-C",
    )  # fmt: skip
    parser.add_argument(
        "--format",
        default="pdf,png",
        type=_formats,
        metavar="F,F",
        help="of pdf, png, svg (default: pdf,png)",
    )
    parser.add_argument(
        "--at", type=int, metavar="STEP", help="draw this recorded step instead of first and last"
    )
    parser.add_argument(
        "--no-theory", action="store_true", help="leave out the dashed lines of theory at init"
    )
    parser.add_argument(
        "--allow", action="append", default=[], metavar="MODULE",
        help="let the theory build placements, norms, inits and activations of this module"
        " (may be repeated)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write (default: SWEEP/figures)"
    )
    parser.add_argument(
        "--x",
        choices=[*get_args(XScale)],
        default="auto",
        help="the axis of layers: l, l/L, or l on a log axis; auto takes l/L where lines of"
        " different depth share a panel, else l (default: %(default)s)",
    )
    parser.add_argument(
        "--own-colours",
        action="store_true",
        help="maps: a colour scale for each row of panels instead of one for all",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="KEY=VALUE,...",
        help="draw the runs that have one of these values of a key (may be repeated)",
    )  # fmt: skip
    parser.add_argument(
        "--panels", default="", metavar="KEY,KEY",
        help="keys whose values have panels instead of colours and dashes: --panels norm",
    )  # fmt: skip
    parser.add_argument(
        "--weights", default="", metavar="NAME,NAME",
        help="weight matrices that have panels: q, k, v, attn_out, mlp_in, mlp_out, ...",
    )  # fmt: skip
    parser.add_argument(
        "--style", choices=[*get_args(Style)], default="paper",
        help="talk: larger text and thicker lines; dark: light on black (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--font", choices=[*get_args(Font)], default="sans",
        help="serif: Times-like, with mathematics in the same (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--width", type=float, choices=WIDTHS, default=6.75, help="inches (default: %(default)s)"
    )
    return parser


def _described(figure: tuple[str, ModuleType]) -> str:
    """A figure and the first line of its docstring, as a line of the help."""
    name, module = figure
    return f"  {name:18} {(module.__doc__ or '').splitlines()[0]}"


def _seconds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_SECONDS:
        legal = f"must be a whole number of seconds, 1 to {MAX_SECONDS:,}"
        raise argparse.ArgumentTypeError(f"{text!r} {legal}")
    return int(text)


def _formats(text: str) -> list[str]:
    chosen = text.split(",")
    if wrong := [f for f in chosen if f not in FORMATS]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not one of {', '.join(FORMATS)}")
    return chosen


def _wanted(names: str | None) -> dict[str, ModuleType]:
    known = figures.modules()
    if names is None:
        return known
    for name in names.split(","):
        if name not in known:
            raise Unreadable(f"--figures {name}: {must_be_one_of(name, list(known))}")
    return {name: known[name] for name in names.split(",")}


class SweepPlotter:
    """Draws the figures of one sweep."""

    def __init__(
        self, path: Path, folders: list[Path], args: argparse.Namespace, out: Path, console: Console
    ) -> None:
        self.path, self.args, self.out = path, args, out
        self.console = console
        self.runs = only(sweep_rows(path, "runs"), args.only)
        kept = set(self.runs.frame["folder"])
        self.folders = [folder for folder in folders if folder.name in kept]
        self._theories: dict[str, SweepTheory] = {}

    def draw(self, wanted: dict[str, ModuleType], command: str) -> int:
        """Draw, list what was drawn and what was skipped and why; how many were drawn."""
        if self.args.at is not None:
            self.runs = self.runs.with_remarks(*self._without_step(self.args.at))
        self._introduce()
        drawn: list[PageFigure] = []
        console = self.console
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            for name, module in progress.track(wanted.items(), description="drawing"):
                try:
                    numbers, figure = self._figure(module, progress)
                except CannotDraw as reason:
                    console.print(f"  {name:16} skipped: {reason}", markup=False)
                    continue
                facts = origin(command, module, self.runs)
                save(self.out / name, figure, numbers, facts, self.args.format)
                files = [f"{name}.{form}" for form in (*self.args.format, "csv")]
                drawn.append(PageFigure.of(module, figure, facts, files))
                console.print(f"  {name:16} {self.out / name}.{self.args.format[-1]}", markup=False)
        if drawn:
            page = sweep_page.write(self.path, self.runs, drawn, self.out, self.args.watch)
            console.print(f"  {'all in a page':16} {page}", markup=False)
        return len(drawn)

    def _introduce(self) -> None:
        axes, count = ", ".join(self.runs.axes), len(self.runs.frame)
        varying = f", what varies: {axes}" if axes else ""
        self.console.print(f"[bold]{self.path}[/]: {count} run{'s' * (count != 1)}{varying}")
        for remark in self.runs.remarks:
            self._warn(remark)
        for name, why in self.runs.damaged.items():
            self._warn(f"left out {name}: {why}")

    def _warn(self, text: str) -> None:
        self.console.print(f"  warning: {text}", style="yellow", markup=False)

    def _figure(self, module: ModuleType, progress: Progress) -> tuple[pd.DataFrame, Figure]:
        """The numbers of a figure, for its csv, and the figure."""
        rows = sweep_rows(self.path, module.TABLE, module.COLUMNS, self._where(module))
        rows = rows.with_frame(rows.frame[rows.frame["run"].isin(self.runs.frame["run"])])
        numbers = module.data(stacks_apart(replace(rows, remarks=self._remarks())))
        if not self._has_theory(module):
            return numbers.frame, module.draw(numbers, width=self.args.width)
        sweep_theory = self._sweep_theory(module.TABLE, progress)
        theory, remarks = _predicted(module, sweep_theory.rows)
        numbers = numbers.with_remarks(*sweep_theory.remarks, *remarks)
        figure = module.draw(numbers, width=self.args.width, theory=theory)
        sources = {"measured": numbers, "theory": theory}
        parts = [rows.frame.assign(source=name) for name, rows in sources.items() if rows]
        return pd.concat(parts, ignore_index=True), figure

    def _remarks(self) -> tuple[str, ...]:
        """What a figure says of its runs: which nets they are, and what is odd about them."""
        return (notes.caption(self.runs), *self.runs.remarks)

    def _has_theory(self, module: ModuleType) -> bool:
        at_init = self.args.at in (None, 0)
        takes = "theory" in signature(module.draw).parameters
        return takes and at_init and not self.args.no_theory

    def _where(self, module: ModuleType) -> list[Where]:
        """What to read: the figure's own rows, and of those the steps that it draws."""
        either = [module.WHERE] if isinstance(module.WHERE, Mapping) else module.WHERE
        if module.TABLE not in ("layers", "probes") or module.STEPS != "ends":
            return list(either)
        last = self.runs.frame["last_step"].dropna().astype(int)
        steps = sorted({0, *last}) if self.args.at is None else [self.args.at]
        return [{**where, "step": steps} for where in either]

    def _sweep_theory(self, table: str, progress: Progress) -> SweepTheory:
        """The theory of a table's rows, computed when the first figure of the table needs it."""
        if table not in self._theories:
            track = partial(progress.track, description="theory at init")
            self._theories[table] = theory_of_sweep(
                self.folders, self.runs, self.out / THEORY_FOLDER, self.args.allow,
                lambda results, count: track(results, total=count), table,
            )  # fmt: skip
            for remark in self._theories[table].remarks:
                self._warn(remark)
        return self._theories[table]

    def _without_step(self, step: int) -> list[str]:
        """What to say of runs that did not record a step. Raises Unreadable where none did."""
        recorded = load(self.path, "layers", ["step"], {"site": ["resid_post"]})
        have = recorded[recorded["step"] == step]["run"].nunique()
        if not have:
            steps = ", ".join(map(str, sorted(recorded["step"].unique()))) or "none yet"
            raise Unreadable(f"--at {step}: {self.path} has no such step; recorded are {steps}")
        runs = len(self.runs.frame)
        return [f"{runs - have} of {runs} runs have no step {step}"] if have < runs else []


def _predicted(module: ModuleType, rows: SweepRows) -> tuple[SweepRows | None, list[str]]:
    """The numbers that a figure makes of the theory's rows, and what to say of rows left out."""
    frame = rows.frame
    for column, values in module.WHERE.items():
        frame = frame[frame[column].isin(values)] if len(frame) else frame
    if frame.empty:
        return None, []
    saturated = frame["saturated"].astype(bool)
    bad, runs = frame.loc[saturated, "run"].nunique(), frame["run"].nunique()
    remarks = [f"no theory where softmax saturates ({bad} of {runs} variants)"] if bad else []
    with suppress(CannotDraw):  # no row is left that the figure shows
        return module.data(rows.with_frame(frame[~saturated])), remarks
    return None, remarks


if __name__ == "__main__":
    sys.exit(main())
