"""The command ``python -m stability.plot PATH``: figures for every sweep found below a path.

Beside each figure lie the numbers it draws (csv) and what it was made from (json). Starts in a
second: needs neither torch nor hydra.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress

from stability import figures, shell
from stability.figures.drawing.files import about, save
from stability.figures.drawing.select import CannotFill
from stability.figures.drawing.style import WIDTHS, axes_of
from stability.results.atomic import Unreadable
from stability.results.frames import load
from stability.results.index import sweeps
from stability.theory.overlay import Overlay, of_sweep

FORMATS = ("pdf", "png")


@shell.quiet_exit
def main(argv: Sequence[str] | None = None) -> int:
    """Draw what is asked for; 0 if something was drawn, 2 with a line of reason if not."""
    args = _parser().parse_args(argv)
    words = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "-m", "stability.plot", *words])
    console = Console(soft_wrap=True, highlight=False)
    try:
        wanted = _wanted(args.figures)
        found = sweeps(args.path)
        drawn = 0
        for sweep, folders in found.items():
            folder = sweep / "figures"
            if args.out:
                folder = args.out / sweep.name if len(found) > 1 else args.out
            try:
                what = Sweep(sweep, folders, args, folder, console)
            except Unreadable as error:
                print(f"stability.plot: {error}", file=sys.stderr)
                continue
            drawn += what.draw(wanted, command)
    except Unreadable as error:
        print(f"stability.plot: {error}", file=sys.stderr)
        return 2
    if not drawn:
        print(f"stability.plot: {args.path}: nothing could be drawn, see above", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m stability.plot",
        allow_abbrev=False,
        description="Draw the figures of every sweep found below PATH.",
    )
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="a run, a sweep, or a folder of them"
    )
    names = ", ".join(figures.modules())
    parser.add_argument("--figures", metavar="A,B", help=f"which to draw (default: all): {names}")
    parser.add_argument(
        "--format", default="pdf,png", type=_formats, metavar="F,F", help="pdf, png (default: both)"
    )
    parser.add_argument(
        "--at", type=int, metavar="STEP", help="draw this recorded step instead of first and last"
    )
    parser.add_argument(
        "--no-theory", action="store_true", help="leave out the dashed lines of theory at init"
    )
    parser.add_argument(
        "--allow", action="append", default=[], metavar="MODULE",
        help="let theory build placements, norms and inits of this module too (may be repeated)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write (default: SWEEP/figures)"
    )
    parser.add_argument(
        "--width", type=float, choices=WIDTHS, default=6.75, help="inches (default: %(default)s)"
    )
    return parser


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
            raise Unreadable(f"--figures {name}: must be one of {', '.join(known)}")
    return {name: known[name] for name in names.split(",")}


class Sweep:
    """One sweep's figures: what can be drawn of it, and where it goes."""

    def __init__(
        self, path: Path, folders: list[Path], args: argparse.Namespace, out: Path, console: Console
    ) -> None:
        self.path, self.folders, self.args, self.out = path, folders, args, out
        self.console = console
        self._made: dict[str, Overlay] = {}
        self.runs = load(path, "runs")

    def draw(self, wanted: dict[str, ModuleType], command: str) -> int:
        """Draw, list what was drawn and what was skipped and why; how many were drawn."""
        if self.args.at is not None:
            self.runs.attrs["remarks"] += _lacking(self.path, self.args.at, len(self.runs))
        self._introduce()
        drawn = 0
        console = self.console
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            for name, module in progress.track(wanted.items(), description="drawing"):
                try:
                    numbers, figure = self._figure(module, progress)
                except CannotFill as reason:
                    console.print(f"  {name:16} skipped: {reason}", markup=False)
                    continue
                facts = about(command, module, self.runs)
                save(self.out / name, figure, numbers, facts, self.args.format)
                drawn += 1
                console.print(f"  {name:16} {self.out / name}.{self.args.format[-1]}", markup=False)
        return drawn

    def _introduce(self) -> None:
        axes, count = ", ".join(axes_of(self.runs)), len(self.runs)
        what = f", what varies: {axes}" if axes else ""
        self.console.print(f"[bold]{self.path}[/]: {count} run{'s' * (count != 1)}{what}")
        for remark in self.runs.attrs["remarks"]:
            self._warn(remark)
        for name, why in self.runs.attrs["damaged"].items():
            self._warn(f"left out {name}: {why}")

    def _warn(self, text: str) -> None:
        self.console.print(f"  warning: {text}", style="yellow", markup=False)

    def _figure(self, module: ModuleType, progress: Progress) -> tuple[pd.DataFrame, Figure]:
        rows = load(self.path, module.TABLE, module.COLUMNS, self._where(module))
        rows.attrs["remarks"] = list(self.runs.attrs["remarks"])
        numbers = module.data(rows)
        if not self._has_theory(module):
            return numbers, module.draw(numbers, width=self.args.width)
        theory = self._theory(module.TABLE, progress)
        predicted, remarks = _predicted(module, theory.rows)
        numbers.attrs["remarks"] += theory.remarks + remarks
        figure = module.draw(numbers, width=self.args.width, theory=predicted)
        sources = {"measured": numbers, "theory": predicted}
        parts = [part.assign(source=name) for name, part in sources.items() if part is not None]
        return pd.concat(parts, ignore_index=True), figure

    def _has_theory(self, module: ModuleType) -> bool:
        at_init = self.args.at in (None, 0)
        takes = "theory" in signature(module.draw).parameters
        return takes and at_init and not self.args.no_theory

    def _where(self, module: ModuleType) -> dict[str, Any]:
        """What to read: the figure's own rows, and of those the steps that it draws."""
        where = dict(module.WHERE)
        if module.TABLE in ("layers", "probes") and module.STEPS == "ends":
            last = self.runs["last_step"].dropna().astype(int)
            where["step"] = sorted({0, *last}) if self.args.at is None else [self.args.at]
        return where

    def _theory(self, table: str, progress: Progress) -> Overlay:
        """Made when the first figure of a table asks for it."""
        if table not in self._made:
            track = partial(progress.track, description="theory at init")
            self._made[table] = of_sweep(
                self.folders, self.runs, self.out / "theory", self.args.allow,
                lambda results, count: track(results, total=count), table,
            )  # fmt: skip
            for remark in self._made[table].remarks:
                self._warn(remark)
        return self._made[table]


def _predicted(module: ModuleType, rows: pd.DataFrame) -> tuple[pd.DataFrame | None, list[str]]:
    """The numbers that a figure makes of the theory's rows, and what to say of those left out."""
    for column, values in module.WHERE.items():
        rows = rows[rows[column].isin(values)] if len(rows) else rows
    if rows.empty:
        return None, []
    good = rows[~rows["saturated"].astype(bool)]
    bad = rows.loc[rows["saturated"].astype(bool), "run"].nunique()
    of = rows["run"].nunique()
    remarks = [f"no theory where softmax saturates ({bad} of {of} variants)"]
    with suppress(CannotFill):  # nothing of what it shows is left
        return module.data(good), remarks if bad else []
    return None, remarks if bad else []


def _lacking(sweep: Path, step: int, runs: int) -> list[str]:
    """What to say of runs that did not record a step; an error where none did."""
    recorded = load(sweep, "layers", ["step"], {"site": ["resid_post"]})
    have = recorded[recorded["step"] == step]["run"].nunique()
    if not have:
        steps = ", ".join(map(str, sorted(recorded["step"].unique()))) or "none yet"
        raise Unreadable(f"--at {step}: {sweep} has no such step; recorded are {steps}")
    return [f"{runs - have} of {runs} runs have no step {step}"] if have < runs else []


if __name__ == "__main__":
    sys.exit(main())
