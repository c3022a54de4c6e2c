"""The command ``python -m stability.compare A B``; needs neither torch nor hydra."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from stability import shell
from stability.difference.compare import Comparison, compare
from stability.figures.drawing.notebook import png
from stability.results import atomic
from stability.results.atomic import Unreadable

DIFFERENT = 1
"""Exit code where two runs differ by more than the tolerance."""


@shell.quiet_exit
def main(argv: Sequence[str] | None = None) -> int:
    """Print in what two runs or sweeps differ.

    Returns:
        0; 1 where --tolerance is exceeded; 2 after a line that says why nothing was compared.
    """
    args = _parser().parse_args(argv)
    try:
        found = compare(args.a, args.b, args.stat)
        print(found)
        if args.out:
            _write(found, args.out)
        return 0 if args.tolerance is None else _check(found, args.tolerance)
    except Unreadable as error:
        print(f"stability.compare: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = shell.command_parser(
        "compare", "Say in what two runs, or two sweeps, differ: config, numbers, first difference."
    )
    for name in ("a", "b"):
        parser.add_argument(name, type=Path, metavar=name.upper(), help="a run, or a sweep")
    parser.add_argument(
        "--stat", default="act.var", metavar="KIND.COLUMN",
        help="statistic of the residual stream to compare by depth (default: %(default)s)",
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
    try:
        out.mkdir(parents=True, exist_ok=True)
        with atomic.writing(out / "compare.png") as file:
            file.write(png(found.figure))
        for name, frame in tables.items():
            atomic.write_text(out / f"compare_{name}.csv", frame.to_csv(index=False))
    except OSError as error:
        raise Unreadable(f"{out}: cannot write ({error.strerror})") from error
    print(f"\n  {out / 'compare.png'}")
