"""``python -m stability.replay RUN``: the step at which a run diverged, run again under a lens.

Loads the weights and the batch that the failing step started from, repeats the step with every
operation watched, and says which one made the first non-finite value out of finite inputs. The step
runs once as it ran, and once with fused attention opened (the math kernel): there scores and
softmax show, and every operation of it goes to replay.parquet. ``--dtype`` repeats the step in a
second format beside the run's.
"""

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from rich.console import Console
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel

from stability import shell
from stability.config import instantiate
from stability.config.knobs import DTYPES, Config, ConfigError
from stability.config.names import Key
from stability.model.build import device_of, model_of, recorder_of
from stability.model.gpt import GPT
from stability.recording.operations import Operation, OperationTrace, TensorSummary
from stability.recording.recorded_step import Rows
from stability.results import atomic
from stability.results.run_file import RunFile
from stability.results.schema import CONFIG_FILE, FAILURE_FILE
from stability.training.passes import forward_backward

REPLAY_FILE = "replay.parquet"
BEFORE = 6
"""Operations shown before the culprit."""


class Refused(Exception):
    """A run that cannot be replayed; one line."""


def load(folder: Path) -> tuple[Config, dict[str, Any]]:
    """Config and failing state of a run.

    Raises:
        Refused: no run, or none that kept a failing step.
    """
    try:
        plain = yaml.safe_load((folder / CONFIG_FILE).read_text())
        state = torch.load(folder / FAILURE_FILE, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        what = "is no run" if not (folder / CONFIG_FILE).exists() else "has not diverged"
        raise Refused(f"{folder}: {what} (no {Path(error.filename).name})") from error
    except Exception as error:
        raise Refused(f"{folder}: damaged ({str(error).splitlines()[0]})") from error
    if not isinstance(plain, dict) or not isinstance(state, dict):
        raise Refused(f"{folder}: {CONFIG_FILE} or {FAILURE_FILE} holds something else")
    try:
        return Config.from_plain(plain), state
    except ConfigError as error:
        raise Refused(f"{folder}: {CONFIG_FILE}: {error}") from error


def prepare(config: Config, state: dict[str, Any], dtype: str) -> GPT:
    """The model as the failing step found it, its weights cast to a dtype."""
    vocab = state["model"]["embed.wte"].shape[0]
    model = model_of(config.changed({"dtype": dtype, "compile": False}), vocab)
    model.load_state_dict(state["model"])
    return model.to(device_of(config)).train()


def repeat(config: Config, state: dict[str, Any], model: GPT, dtype: str) -> None:
    """The forward and backward pass of the failing step, in a dtype."""
    device = next(model.parameters()).device
    x_BT, y_BT = state["x"].to(device), state["y"].to(device)
    scale = state["loss_scale"]["scale"].to(device)
    model.zero_grad()
    forward_backward(config.changed({"dtype": dtype}), model, x_BT, y_BT, state["step"], scale)


def watch(
    config: Config, state: dict[str, Any], dtype: str, open_attention: bool
) -> OperationTrace:
    """The failing step with every operation watched."""
    model = prepare(config, state, dtype)
    kernel: AbstractContextManager[Any] = (
        sdpa_kernel(SDPBackend.MATH) if open_attention else nullcontext()
    )
    trace = OperationTrace(model.sites())
    with kernel, trace:
        repeat(config, state, model, dtype)
    return trace


def as_it_ran(folder: Path, config: Config, state: dict[str, Any]) -> OperationTrace:
    """The failing step as the run made it.

    Raises:
        Refused: the two files are not what one run left.
    """
    try:
        return watch(config, state, config.dtype, open_attention=False)
    except ConfigError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        files = f"{CONFIG_FILE} and {FAILURE_FILE}"
        raise Refused(f"{folder}: {files} give no step to repeat ({why})") from error


def sites(config: Config, state: dict[str, Any], dtype: str) -> Rows:
    """The failing step's rows at every site and parameter, in a dtype."""
    model = prepare(config, state, dtype)
    recorder = recorder_of(config.changed({"compile": False}), model, all_kinds=True)
    recorder.start()
    repeat(config, state, model, dtype)
    recorder.gradients(float(state["loss_scale"]["scale"]))
    rows = recorder.take().rows(step=state["step"])
    recorder.detach()
    return rows


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


def save(trace: OperationTrace, path: Path) -> None:
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
    """Replay a run and say what broke; returns the exit code."""
    config, state = load(folder)
    trace = as_it_ran(folder, config, state)
    dtype = config.dtype
    console.print(f"{folder}: step {state['step']}, dtype {dtype}", soft_wrap=True)
    culprit = trace.culprit()
    opened = watch(config, state, dtype, open_attention=True)
    if culprit is not None and "attention" in culprit.name:
        console.print(f"{culprit.name} made it; the same step with attention opened:")
        trace, culprit = (opened, opened.culprit()) if opened.culprit() else (trace, culprit)
    update = broken_by_update(folder) if culprit is None else ""
    if culprit is None:
        console.print(update or "no operation made a non-finite value out of finite ones")
    else:
        show_operations(trace, culprit, console)
    columns = {name: sites(config, state, name) for name in dict.fromkeys((dtype, beside)) if name}
    show_sites(columns, console)
    save(opened, folder / REPLAY_FILE)
    if culprit is not None:
        console.print(
            f"[bold]{culprit.name}[/] ({culprit.phase}, {culprit.place}) made the first non-finite "
            f"value, out of finite inputs: {show_tensors(culprit.inputs)}".replace("\n", "; "),
            soft_wrap=True,
        )
    console.print(f"every operation: {folder / REPLAY_FILE}", soft_wrap=True)
    return 0 if culprit is not None or update else 1


def broken_by_update(folder: Path) -> str:
    """Says so where the pass is finite and the update that it led to broke a weight."""
    found = RunFile.read(folder).first_bad
    if not found or found["kind"] != "update":
        return ""
    return f"every operation of the pass is finite; the update that follows breaks {Key.of(found)}"


@shell.quiet_exit
def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m stability.replay", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run that diverged")
    parser.add_argument("--dtype", choices=DTYPES, help="repeat the step in this format as well")
    parser.add_argument("--config-dir", type=Path, help="folder of modules the run's yaml needs")
    parser.add_argument(
        "--allow", action="append", default=[], help="module the run may build from"
    )
    args = parser.parse_args(argv)
    instantiate.allow(*args.allow, option="--allow MODULE")
    if args.config_dir:
        instantiate.trust(args.config_dir)
    try:
        return explain(args.run, args.dtype, Console())
    except (Refused, ConfigError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
