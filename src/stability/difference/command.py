"""The command ``python -m stability.compare A [B]``; needs neither torch nor hydra.

With two arguments it compares two runs or sweeps, with one the methods of a sweep.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stability import shell
from stability.difference import methods_figure, methods_page
from stability.difference.compare import Comparison, compare
from stability.difference.methods import compare_methods
from stability.figures.drawing.notebook import png
from stability.results import atomic
from stability.results.atomic import Unreadable
from stability.results.schema import FIGURES_FOLDER

DEFAULT_STAT = "act.var"
PAGES = (".md", ".html")
DIFFERENT = 1
"""Exit code where two runs differ by more than the tolerance."""


@shell.quiet_exit
def main(argv: Sequence[str] | None = None) -> int:
    """Print in what two runs or sweeps differ, or the methods of one sweep.

    Returns:
        0; 1 where --tolerance is exceeded; 2 after a line that says why nothing was compared.
    """
    args = _parser().parse_args(argv)
    try:
        _refuse_without_effect(args)
        if args.b is None:
            return _methods(args)
        found = compare(args.a, args.b, args.stat or DEFAULT_STAT)
        print(found)
        if args.out:
            _write(found, args.out)
        return 0 if args.tolerance is None else _check(found, args.tolerance)
    except Unreadable as error:
        print(f"stability.compare: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = shell.command_parser(
        "compare",
        "Say in what two runs, or two sweeps, differ: config, numbers, first difference. With one"
        " sweep: its methods beside each other.",
    )
    parser.add_argument("a", type=Path, metavar="A", help="a run, or a sweep")
    parser.add_argument("b", type=Path, metavar="B", nargs="?", help="another one")
    parser.add_argument(
        "--by", action="append", metavar="KEY",
        help="with A alone: a swept key that makes a method (may be repeated; default: all but seed"
        " and train.lr); methods are compared within each value of the other keys",
    )  # fmt: skip
    parser.add_argument(
        "--to", type=_page_file, metavar="FILE",
        help="with A alone: the page, FILE.md or FILE.html (default: A/figures/methods.md); the"
        " figure and the tables are written beside it",
    )  # fmt: skip
    parser.add_argument(
        "--stat", metavar="KIND.COLUMN",
        help="statistic of the residual stream to compare by depth (default: act.var)",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", type=_tolerance, metavar="T",
        help="exit with 1 if the runs of a pair differ by more than this relative difference in any"
        " loss or statistic, or if one has more steps; 0: if a bit differs (default: no check)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write compare.png and the tables as csv there"
    )
    return parser


def _page_file(text: str) -> Path:
    path = Path(text)
    if path.suffix not in PAGES:
        raise argparse.ArgumentTypeError(f"{text}: must end in {' or '.join(PAGES)}")
    return path


def _refuse_without_effect(args: argparse.Namespace) -> None:
    """Raise Unreadable for the first option that says nothing to these arguments."""
    alone = args.b is None
    without = ("stat", "tolerance", "out") if alone else ("by", "to")
    for name in without:
        if getattr(args, name) is not None:
            takes = "compares two runs or sweeps: name B" if alone else "is for one sweep"
            raise Unreadable(f"--{name}: {takes}")


def _methods(args: argparse.Namespace) -> int:
    """Print and write the methods of one sweep."""
    found = compare_methods(args.a, args.by or ())
    print(methods_page.text(found))
    page = args.to or args.a / FIGURES_FOLDER / "methods.md"
    shown, picture = png(methods_figure.draw(found)), page.with_suffix(".png")
    if page.suffix == ".html":
        written = methods_page.html(found, shown)
    else:
        written = methods_page.markdown(found, picture.name)
    with _writing(page.parent):
        page.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(page, written)
        atomic.write_text(
            page.with_suffix(".csv"), methods_figure.numbers(found).to_csv(index=False)
        )
        with atomic.writing(picture) as file:
            file.write(shown)
    print(f"\n  {page}")
    return 0


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raises Unreadable in place of what the system says of a folder it cannot write to."""
    try:
        yield
    except OSError as error:
        raise Unreadable(f"{folder}: cannot write ({error.strerror})") from error


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text}: must be a number >= 0")
    return value


def _check(found: Comparison, tolerance: float) -> int:
    """The exit code of a check, after a line that says what it found."""
    try:
        within = found.is_within(tolerance)
    except ValueError as error:
        raise Unreadable(f"--tolerance: {error}") from error
    what = "the same bits" if tolerance == 0 else f"within the tolerance {tolerance:g}"
    print(f"\n{what}: {'yes' if within else 'no'}")
    return 0 if within else DIFFERENT


def _write(found: Comparison, out: Path) -> None:
    """The figure and the tables."""
    tables = {
        "config": found.config,
        "numbers": found.numbers,
        "differences": found.differences,
        "curves": found.curves,
    }
    with _writing(out):
        out.mkdir(parents=True, exist_ok=True)
        with atomic.writing(out / "compare.png") as file:
            file.write(png(found.figure))
        for name, frame in tables.items():
            atomic.write_text(out / f"compare_{name}.csv", frame.to_csv(index=False))
    print(f"\n  {out / 'compare.png'}")
