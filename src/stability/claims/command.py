"""The command ``python -m stability.claims PATH``: what is claimed, what was measured, the verdict.

Every claim in experiments/ is evaluated on the runs found below PATH. Its criterion is read from
its experiment's file, so that a changed criterion needs no new runs. Needs neither torch nor hydra.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from stability import shell
from stability.claims import forest, pages, report, syntax
from stability.claims.claim import Claim
from stability.claims.departures import planned
from stability.claims.evaluate import Result, evaluate
from stability.claims.sweep_data import SweepData
from stability.claims.verdict import NOT_MEASURED
from stability.claims.yaml_types import BadClaim
from stability.config import folders, instantiate
from stability.config.suggestions import must_be_one_of
from stability.figures.drawing.select import CannotDraw
from stability.figures.drawing.style import styled
from stability.results import atomic
from stability.results.atomic import Unreadable
from stability.results.index import sweeps

WIDE = 200
"""Width of the table in characters where it is not printed to a terminal."""


@shell.quiet_exit
def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, and write that of all claims. Returns 0, or 2 after a line that says why."""
    args = _parser().parse_args(argv)
    try:
        _run(args)
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


def _run(args: argparse.Namespace) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDE
    for folder in args.config_dir:
        if not folder.is_dir():
            raise BadClaim(f"--config-dir {folder}: is not a folder")
        instantiate.trust(folder)
    known = folders.experiments(args.config_dir)
    wanted = _wanted(syntax.read_claims(known), args.claims, args.stage)
    if args.report:
        _place_in(args.report)
    if args.sweeps:
        print("\n".join(_sweeps(wanted)))
        return
    found = _found(args.path, known)
    # A claim at another size is evaluated only where its runs exist.
    wanted = [c for c in wanted if args.claims or not c.like or c.runs in found]
    results = _evaluate(wanted, found, not args.no_theory, console)
    console.print(report.console(results))
    # The files beside the runs are about all claims: a choice of claims does not replace them.
    chosen = args.claims is not None or args.stage is not None
    if args.out or not chosen:
        for path in report.write(results, args.out or args.path):
            console.print(f"  {path}", markup=False)
    if args.pages:
        _fill_pages(results, known)
    if args.report:
        _report(results, args.report, known)


def _parser() -> argparse.ArgumentParser:
    parser = shell.command_parser(
        "claims", "Evaluate every claim in experiments/ on the runs found below PATH."
    )
    parser.add_argument(
        "path", type=Path, metavar="PATH", nargs="?", default=Path("outputs"),
        help="a folder of sweeps (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--claims", metavar="A,B", help="which to evaluate (default: all)")
    parser.add_argument(
        "--stage", choices=syntax.STAGES, help="only claims about init, or about training"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR",
        help="where claims.md, .csv and .json go (default: PATH; with --claims or --stage nowhere)",
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


def _wanted(known: Sequence[Claim], names: str | None, stage: str | None) -> list[Claim]:
    if names is None:
        return [c for c in known if stage in (None, c.stage)]
    by_name = {c.id: c for c in known}
    asked = names.replace("_", "-").split(",")
    for name in asked:
        if name not in by_name:
            raise BadClaim(f"--claims {name}: {must_be_one_of(name, list(by_name))}")
        if stage not in (None, by_name[name].stage):
            raise BadClaim(
                f"--claims {name}: is a claim about {by_name[name].stage}, not --stage {stage}"
            )
    return [by_name[name] for name in asked]


def _sweeps(wanted: Sequence[Claim]) -> list[str]:
    """Sweeps that claims of CPU size need, each with the figures that show its claims."""
    figures: dict[str, list[str]] = {}
    for c in (c for c in wanted if not c.like):
        for name in c.sweeps:
            figures.setdefault(name, []).extend([c.figure] if c.figure else [])
    return [f"{name} {','.join(sorted(set(f)))}".strip() for name, f in figures.items()]


def _found(path: Path, known: Mapping[str, Path]) -> dict[str, SweepData]:
    """The sweeps by name. Raises Unreadable where two have one name."""
    found: dict[str, SweepData] = {}
    for folder in sweeps(path):
        if folder.name in found:
            raise Unreadable(f"{folder} and {found[folder.name].path}: two sweeps of one name")
        plan = planned(known[folder.name]) if folder.name in known else {}
        found[folder.name] = SweepData(folder, plan)
    return found


def _evaluate(
    wanted: Sequence[Claim], found: dict[str, SweepData], theory: bool, console: Console
) -> list[Result]:
    for name, sweep in found.items():
        for run, why in sweep.damaged.items():
            console.print(f"  warning: {name}: left out {run}: {why}", style="yellow", markup=False)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        tracked = progress.track(wanted, description="claims")
        return [evaluate(claim, found, theory) for claim in tracked]


def _fill_pages(results: Sequence[Result], known: dict[str, Path]) -> None:
    for result in results:
        if result.waits:
            continue  # where nothing has been run, a page keeps its result
        page = known[result.claim.name].with_suffix(".md")
        if page.exists():
            text = page.read_text(encoding="utf-8")
            atomic.write_text(page, pages.fill(text, pages.section(result)))


def _place_in(page: Path) -> str:
    """A page's text. Raises BadClaim where it has no place for verdicts."""
    try:
        text = page.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadClaim(f"--report {page}: is not UTF-8 text") from error
    if pages.held(text) is None:
        raise BadClaim(f"--report {page}: has no line {pages.START} with {pages.END} below it")
    return text


def _report(results: Sequence[Result], page: Path, known: dict[str, Path]) -> None:
    """Fill a page, its figures in a folder of its name beside it."""
    _refuse_losses(results, page)
    own = {r.claim.name: known[r.claim.name].with_suffix(".md") for r in results}
    links = {n: os.path.relpath(file, page.parent) for n, file in own.items() if file.exists()}
    drawn = {}
    for result in results:
        with suppress(CannotDraw):
            figure = forest.draw(result.findings)
            file = page.with_suffix("") / f"{result.claim.name}.png"
            file.parent.mkdir(exist_ok=True)
            with atomic.writing(file) as out, styled():
                figure.savefig(out, format="png", dpi=150, metadata={"Software": None})
            drawn[result.claim.id] = f"{file.parent.name}/{file.name}"
    text = pages.fill(_place_in(page), pages.report(results, drawn, links))
    atomic.write_text(page, text)


def _refuse_losses(results: Sequence[Result], page: Path) -> None:
    """Raise BadClaim if the page has a verdict on a claim that was not measured this time."""
    held = pages.verdicts(_place_in(page))
    measured = {r.claim.id for r in results if r.verdict != NOT_MEASURED}
    had = [claim for claim, verdict in held.items() if verdict != NOT_MEASURED]
    if lost := [claim for claim in had if claim not in measured]:
        raise BadClaim(f"--report {page}: holds verdicts that would be lost: {', '.join(lost)}")
