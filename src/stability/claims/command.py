"""The command ``python -m stability.claims PATH``: what is claimed, what was measured, the verdict.

Every claim in experiments/ is put to the runs found below PATH. A claim's criterion is read from
its experiment's file, so that a changed criterion needs no new runs. Needs neither torch nor hydra.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from stability import shell
from stability.claims import forest, report, syntax
from stability.claims.evaluate import Result, evaluate
from stability.claims.sweep_data import Sweep
from stability.claims.syntax import BadClaim, Claim
from stability.claims.verdict import NOT_MEASURED, BadCriterion
from stability.config import folders, instantiate
from stability.figures.drawing.select import CannotFill
from stability.figures.drawing.style import styled
from stability.results import atomic
from stability.results.atomic import Unreadable
from stability.results.index import sweeps
from stability.results.run_file import one_line

WIDE = 200
"""Columns of the table where it goes to no terminal."""


@shell.quiet_exit
def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, and write that of all claims; 0, or 2 with a line of reason."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDE
    try:
        for folder in args.config_dir:
            if not folder.is_dir():
                raise BadClaim(f"--config-dir {folder}: is no folder")
            instantiate.trust(folder)
        known = folders.experiments(args.config_dir)
        wanted = _wanted(syntax.read(known), args.claims, args.law)
        if args.report:
            _place_in(args.report)
        if args.sweeps:
            print("\n".join(_sweeps(wanted)))
            return 0
        found = _found(args.path)
        # A claim at another size is asked for by its runs.
        wanted = [c for c in wanted if args.claims or not c.like or c.runs in found]
        results = _evaluate(wanted, found, not args.no_theory, console)
        console.print(report.console(results))
        # The files beside the runs are of all claims: a choice of them does not replace them.
        chosen = args.claims is not None or args.law is not None
        if args.out or not chosen:
            for path in report.write(results, args.out or args.path):
                console.print(f"  {path}", markup=False)
        if args.pages:
            _fill_pages(results, known)
        if args.report:
            _report(results, args.report, known)
    except (Unreadable, BadClaim) as error:
        print(f"stability.claims: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"stability.claims: {where}{error.strerror}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m stability.claims",
        description="Put every claim in experiments/ to the runs found below PATH.",
    )
    parser.add_argument(
        "path", type=Path, metavar="PATH", nargs="?", default=Path("outputs"),
        help="a folder of sweeps (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--claims", metavar="A,B", help="which to evaluate (default: all)")
    parser.add_argument("--law", choices=syntax.LAWS, help="laws at init or of training")
    parser.add_argument(
        "--out", type=Path, metavar="DIR",
        help="where claims.md, .csv and .json go (default: PATH; with --claims or --law nowhere)",
    )  # fmt: skip
    parser.add_argument(
        "--sweeps", action="store_true", help="only list the sweeps that are needed, and figures"
    )
    parser.add_argument("--no-theory", action="store_true", help="leave out the theory's values")
    parser.add_argument(
        "--pages", action="store_true", help="write the results into the experiments' pages"
    )
    parser.add_argument(
        "--report", type=Path, metavar="PAGE",
        help="write verdicts and figures into a page of your own, at the place it marks",
    )  # fmt: skip
    parser.add_argument(
        "--config-dir", type=Path, action="append", default=[], metavar="DIR",
        help="a folder with experiments/ of your own",
    )  # fmt: skip
    return parser


def _wanted(known: Sequence[Claim], names: str | None, law: str | None) -> list[Claim]:
    if names is None:
        return [c for c in known if law in (None, c.law)]
    by_name = {c.id: c for c in known}
    asked = names.replace("_", "-").split(",")
    for name in asked:
        if name not in by_name:
            raise BadClaim(f"--claims {name}: must be one of {', '.join(by_name)}")
        if law not in (None, by_name[name].law):
            raise BadClaim(f"--claims {name}: is a law of {by_name[name].law}, not --law {law}")
    return [by_name[name] for name in asked]


def _sweeps(wanted: Sequence[Claim]) -> list[str]:
    """Sweeps that claims of CPU size need, each with the figures that show them."""
    figures: dict[str, list[str]] = {}
    for c in (c for c in wanted if not c.like):
        for name in dict.fromkeys(part.runs or c.runs for part in c.parts):
            figures.setdefault(name, []).extend([c.figure] if c.figure else [])
    return [f"{name} {','.join(sorted(set(f)))}".strip() for name, f in figures.items()]


def _found(path: Path) -> dict[str, Sweep]:
    """The sweeps by name. Raises Unreadable where two have one name."""
    found: dict[str, Sweep] = {}
    for folder in sweeps(path):
        if folder.name in found:
            raise Unreadable(f"{folder} and {found[folder.name].path}: two sweeps of one name")
        found[folder.name] = Sweep(folder)
    return found


def _evaluate(
    wanted: Sequence[Claim], found: dict[str, Sweep], theory: bool, console: Console
) -> list[Result]:
    for name, sweep in found.items():
        for run, why in sweep.damaged.items():
            console.print(f"  warning: {name}: left out {run}: {why}", style="yellow", markup=False)
    results = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        for claim in progress.track(wanted, description="claims"):
            try:
                results.append(evaluate(claim, found, theory))
            except (AttributeError, KeyError, TypeError, ValueError, BadCriterion) as error:
                what = f"cannot be evaluated as written ({one_line(error)})"
                raise BadClaim(f"{claim.name}: {what}") from error
    return results


def _fill_pages(results: Sequence[Result], known: dict[str, Path]) -> None:
    for result in results:
        if result.findings and all(f.absent for f in result.findings):
            continue  # a page keeps what it says where nothing has been run
        page = known[result.claim.name].with_suffix(".md")
        if page.exists():
            text = page.read_text(encoding="utf-8")
            atomic.write_text(page, report.fill(text, report.section(result)))


def _place_in(page: Path) -> str:
    """A page's text. Raises BadClaim where it has no place for verdicts."""
    text = page.read_text(encoding="utf-8")
    if report.held(text) is None:
        raise BadClaim(f"--report {page}: has no line {report.START} with {report.END} below it")
    return text


def _report(results: Sequence[Result], page: Path, known: dict[str, Path]) -> None:
    """Fill a page, its figures in a folder of its name beside it."""
    _refuse_losses(results, page)
    own = {r.claim.name: known[r.claim.name].with_suffix(".md") for r in results}
    pages = {n: os.path.relpath(file, page.parent) for n, file in own.items() if file.exists()}
    drawn = {}
    for result in results:
        with suppress(CannotFill):
            figure = forest.draw(result.findings)
            file = page.with_suffix("") / f"{result.claim.name}.png"
            file.parent.mkdir(exist_ok=True)
            with atomic.writing(file) as out, styled():
                figure.savefig(out, format="png", dpi=150, metadata={"Software": None})
            drawn[result.claim.id] = f"{file.parent.name}/{file.name}"
    text = report.fill(_place_in(page), report.report(results, drawn, pages))
    atomic.write_text(page, text)


def _refuse_losses(results: Sequence[Result], page: Path) -> None:
    """Refuse to replace a page that holds verdicts of which these results know nothing."""
    found = re.compile(r"^### (\S+)\n.*?^\*\*(.+?)\*\*", re.MULTILINE | re.DOTALL)
    held = found.findall(report.held(_place_in(page)) or "")
    have = {r.claim.id for r in results if r.verdict != NOT_MEASURED}
    if lost := [name for name, verdict in held if verdict != NOT_MEASURED and name not in have]:
        raise BadClaim(f"--report {page}: holds verdicts that would be lost: {', '.join(lost)}")
