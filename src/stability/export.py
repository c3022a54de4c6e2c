"""The command ``python -m stability.export SWEEP --to tensorboard|wandb``: runs on a dashboard.

Of each run: the numbers of `results.curated` by step, and two maps, layers by steps, of the
variance of the residual stream and of the norm of its gradient. Needs the extra of the same name:
``pip install 'gradient-stability[tensorboard]'`` or ``'gradient-stability[wandb]'``.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from stability import shell
from stability.figures import gradient_map, variance_map
from stability.figures.drawing.notebook import pixels
from stability.figures.drawing.select import CannotDraw
from stability.results import parquet as tables
from stability.results.atomic import Unreadable
from stability.results.curated import curated
from stability.results.frames import sweep_rows
from stability.results.index import index, sweeps
from stability.results.run_row import read_config
from stability.results.sinks import Sink, SummaryWriter, WandbRun, sink_of
from stability.results.stream import stacks_apart

MAPS = {"act_var_map": variance_map, "grad_norm_map": gradient_map}
"""Name of an image -> the figure that it shows, of one run."""
SUFFIX = ".stability"
"""Ends the names of event files that this command wrote; only these are replaced."""
COLUMNS = ("step", "layer", "sublayer", "site", "kind", "numel", "nonfinite", "rms")
"""What is read of the layers table."""


@shell.quiet_exit
def main(argv: Sequence[str] | None = None) -> int:
    """Export every run below a path; 0, or 2 after a line that says why not."""
    args = _parser().parse_args(argv)
    if find_spec(args.to) is None:
        cure = f"pip install 'gradient-stability[{args.to}]'"
        return _refuse(f"--to {args.to}: is not installed; {cure}")
    try:
        found = sweeps(args.path)
        for sweep, folders in found.items():
            own = sweep / args.to
            if args.out:
                own = args.out if len(found) == 1 else args.out / sweep.name
            _export(sweep, folders, own, args.to)
    except Unreadable as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename or args.path}: {error.strerror or error}")
    return 0


def _refuse(reason: str) -> int:
    print(f"stability.export: {reason}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = shell.command_parser("export", "Send runs to TensorBoard or to Weights & Biases.")
    parser.add_argument(
        "path", type=Path, metavar="SWEEP", help="a run, a sweep, or a folder of them"
    )
    parser.add_argument("--to", choices=OPENERS, required=True, help="the dashboard")
    parser.add_argument(
        "--out", type=Path, metavar="DIR",
        help="where the dashboard's files go (default: SWEEP/tensorboard or SWEEP/wandb)",
    )  # fmt: skip
    return parser


def _export(sweep: Path, folders: Sequence[Path], out: Path, to: str) -> None:
    """Send every run of one sweep that can be read."""
    found = index(sweep, folders)
    for name, why in found.damaged.items():
        print(f"stability.export: left out {name}: {why}", file=sys.stderr)
    paths = {folder.name: folder for folder in folders}
    project = sweep.resolve().name
    for name, run in zip(found.runs["folder"], found.runs["run"], strict=True):
        with OPENERS[to](out, project, paths[name], run) as writer:
            send(paths[name], sink_of(writer))
        print(f"  {name}")
    print(f"{to}: {len(found.runs)} run{'s' * (len(found.runs) != 1)} in {out}")


def send(folder: Path, sink: Sink) -> None:
    """Send one run's curated numbers and maps, in the order of steps."""
    steps = {row["step"]: row for row in tables.read(folder, "steps").to_pylist()}
    layers = tables.read(folder, "layers", COLUMNS).to_pandas()
    recorded = dict(iter(layers.groupby("step")))
    for step in sorted({*steps, *recorded}):
        sink.scalars(curated(recorded.get(step), steps.get(step, {})), step)
    for name, figure in MAPS.items():
        with suppress(CannotDraw):  # a map needs two recorded steps
            rows = sweep_rows(folder, figure.TABLE, figure.COLUMNS, figure.WHERE)
            drawn = figure.draw(figure.data(stacks_apart(rows)), width=5.5)
            sink.image(name, pixels(drawn), max(recorded))


@contextmanager
def _tensorboard(out: Path, project: str, folder: Path, run: str) -> Iterator[SummaryWriter]:
    """A writer into a folder of the run's name; what an earlier export left there is replaced."""
    from torch.utils.tensorboard import SummaryWriter as Writer

    own = out / folder.name
    for old in own.glob(f"events.out.tfevents.*{SUFFIX}"):
        old.unlink()
    with Writer(str(own), filename_suffix=SUFFIX) as writer:
        yield writer


@contextmanager
def _wandb(out: Path, project: str, folder: Path, run: str) -> Iterator[WandbRun]:
    """A run in the project of the sweep's name; its id is the run's hash, so it is replaced."""
    import wandb

    out.mkdir(parents=True, exist_ok=True)
    quiet = wandb.Settings(console="off", silent=True, x_disable_meta=True, x_disable_stats=True)
    with wandb.init(
        project=project, name=folder.name, id=run, dir=str(out), config=read_config(folder),
        settings=quiet, reinit="finish_previous",
    ) as opened:  # fmt: skip
        yield opened


Opener = Callable[[Path, str, Path, str], AbstractContextManager[SummaryWriter | WandbRun]]

OPENERS: dict[str, Opener] = {"tensorboard": _tensorboard, "wandb": _wandb}
"""Name of a dashboard -> what opens a writer for one run."""

if __name__ == "__main__":
    sys.exit(main())
