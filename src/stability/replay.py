"""``python -m stability.replay RUN``: the step at which a run diverged, operation by operation.

Loads the weights and the batch that the failing step started from, repeats the step, follows every
operation, and says which one made the first non-finite value out of finite inputs. The step is made
once as the run made it, and once with the math kernel of attention in place of a fused one: scores
and softmax are operations of their own there. All operations of this second pass are written to
replay.parquet. ``--dtype`` repeats the step in a second format beside the run's.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from stability import shell
from stability.config import instantiate
from stability.config.knobs import DTYPES, ConfigError
from stability.config.names import Key
from stability.recording.operations import Operation, OperationTrace, TensorSummary
from stability.recording.recorded_step import Rows
from stability.results import atomic
from stability.results.run_file import RunFile
from stability.results.schema import RUN_FILE
from stability.training.kept_failure import FailedStep, NotReplayable

REPLAY_FILE = "replay.parquet"
BEFORE = 6
"""Operations shown before the culprit."""


def show_tensors(tensors: tuple[TensorSummary, ...]) -> str:
    """Tensors in a cell: shape, largest magnitude, and how many entries are not finite."""
    cells = []
    for t in tensors:
        bad = f", {t.nonfinite} non-finite" if t.nonfinite else ""
        cells.append(f"{t.dtype}{list(t.shape)} max {t.absmax:.3g}{bad}")
    return "\n".join(cells)


def show_operations(trace: OperationTrace, culprit: Operation, console: Console) -> None:
    """The culprit and what came before it."""
    table = Table(title="the operations up to the first non-finite value", show_lines=True)
    for name in ("#", "pass", "where", "operation", "read", "wrote"):
        table.add_column(name, overflow="fold")
    for op in trace.operations[max(0, culprit.number - BEFORE) : culprit.number + 1]:
        cells = (str(op.number), op.phase, op.place, op.name)
        style = "bold red" if op is culprit else ""
        table.add_row(*cells, show_tensors(op.inputs), show_tensors(op.outputs), style=style)
    console.print(table)


def show_sites(columns: dict[str, Rows], console: Console) -> None:
    """Largest magnitude at each site around the first bad one, in each dtype."""
    first = next(iter(columns.values()))
    bad = [i for i, n in enumerate(first["nonfinite"]) if n]
    middle = bad[0] if bad else 0
    table = Table(title="largest finite magnitude (non-finite entries) around the first bad site")
    for name in ("kind", "layer", "sublayer", "site", *columns):
        table.add_column(name)
    for i in range(max(0, middle - 2 * BEFORE), min(len(first["site"]), middle + BEFORE)):
        key = [str(first[c][i]) for c in ("kind", "layer", "sublayer", "site")]
        cells = [f"{r['absmax'][i]:.3g} ({r['nonfinite'][i]})" for r in columns.values()]
        table.add_row(*key, *cells, style="bold red" if i == middle else "")
    console.print(table)


def write_operations(trace: OperationTrace, path: Path) -> None:
    """Every operation with every tensor it wrote, as parquet."""
    rows = [
        {
            "number": op.number,
            "pass": op.phase,
            "place": op.place,
            "operation": op.name,
            "output": i,
            "dtype": t.dtype,
            "shape": str(list(t.shape)),
            "absmax": t.absmax,
            "nonfinite": t.nonfinite,
        }
        for op in trace.operations
        for i, t in enumerate(op.outputs)
    ]
    with atomic.writing(path) as file:
        pq.write_table(pa.Table.from_pylist(rows), file)


def explain(folder: Path, beside: str | None, console: Console) -> int:
    """Replay a run and print what broke. Returns 0 if that was found, else 1."""
    failed = FailedStep(folder)
    dtype = failed.config.dtype
    console.print(f"{folder}: step {failed.saved['step']}, dtype {dtype}", soft_wrap=True)
    with console.status("repeating the step as the run made it"):
        trace = failed.operations(dtype, open_attention=False)
        culprit = trace.culprit()
    with console.status("repeating it with attention as separate operations"):
        opened = failed.operations(dtype, open_attention=True)
    if culprit is not None and "attention" in culprit.name:
        console.print(
            f"{culprit.name} made the first non-finite value; "
            "the same step with attention as separate operations:"
        )
        trace, culprit = (opened, opened.culprit()) if opened.culprit() else (trace, culprit)
    update = broken_by_update(folder) if culprit is None else ""
    if culprit is None:
        console.print(update or "no operation made a non-finite value out of finite ones")
    else:
        show_operations(trace, culprit, console)
    columns = {}
    for name in filter(None, dict.fromkeys((dtype, beside))):
        with console.status(f"recording the step in {name}"):
            columns[name] = failed.rows(name)
    show_sites(columns, console)
    write_operations(opened, folder / REPLAY_FILE)
    if culprit is not None:
        console.print(
            f"[bold]{culprit.name}[/] ({culprit.phase}, {culprit.place}) made the first non-finite "
            f"value, out of finite inputs: {show_tensors(culprit.inputs)}".replace("\n", "; "),
            soft_wrap=True,
        )
    console.print(f"every operation: {folder / REPLAY_FILE}", soft_wrap=True)
    return 0 if culprit is not None or update else 1


def broken_by_update(folder: Path) -> str:
    """A sentence naming the weight that the update made non-finite; empty if no update did.

    Raises:
        NotReplayable: the run.json is missing or damaged.
    """
    try:
        found = RunFile.read(folder).first_bad
    except (OSError, ValueError, TypeError) as error:
        raise NotReplayable(f"{folder}: {RUN_FILE} cannot be read") from error
    if not found or found["kind"] != "update":
        return ""
    return f"every operation of the pass is finite; the update that follows breaks {Key.of(found)}"


@shell.quiet_exit
def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = shell.command_parser("replay", __doc__)
    parser.add_argument("run", type=Path, help="folder of a run that diverged")
    parser.add_argument("--dtype", choices=DTYPES, help="repeat the step in this format as well")
    parser.add_argument(
        "--config-dir", type=Path, action="append", default=[], metavar="DIR",
        help="folder with classes of your own that the run was built from (may be repeated)",
    )  # fmt: skip
    parser.add_argument(
        "--allow", action="append", default=[], metavar="MODULE",
        help="module the run may build from (may be repeated)",
    )  # fmt: skip
    args = parser.parse_args(argv)
    instantiate.allow(*args.allow, option="--allow MODULE")
    for folder in args.config_dir:
        instantiate.trust(folder)
    shell.allow_deep_stack()
    try:
        return explain(args.run, args.dtype, Console())
    except (NotReplayable, ConfigError) as error:
        print(f"stability.replay: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
