"""``python -m stability.bench``: what recording and compiling cost on this machine, as ratios.

One training step is timed in each variant in turn, round after round in one process, so that a busy
machine slows all of them alike; the median over rounds is given, and its ratio to the first one.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from stability import shell
from stability.cli.compose import composer
from stability.config import rules
from stability.config.knobs import KNOBS, Config, ConfigError
from stability.config.names import KINDS
from stability.model import preflight
from stability.model.build import Built, build, device_of
from stability.nanogpt_step import nanogpt_step
from stability.recording.machine import device_name
from stability.results.atomic import write_json
from stability.training.passes import train_batch
from stability.training.step import TrainingState, training_step

TimedStep = Callable[[], None]

NANOGPT = "nanoGPT's step"
"""The variant whose network shares nothing with `stability.model`."""


def bench_config(depth: int, width: int, context: int, compiled: bool) -> Config:
    """The default config (conf/config.yaml) with this depth, width and context."""
    with composer(experiment={}, config_dirs=[], name="bench") as default:
        config = rules.validate(default.compose([]))
    config.depth, config.compile = depth, compiled
    config.model.width, config.model.context = width, context
    config.model.heads = max(1, width // 16)
    checked = rules.validate(config.plain())
    preflight.check(checked)
    return checked


def step(built: Built, record: bool) -> TimedStep:
    """One whole training step, recorded or not."""
    state, batch = TrainingState(built), train_batch(built, 0)

    def run() -> None:
        recorded = training_step(state, batch, record).recorded
        if recorded is not None:
            recorded.rows(run="bench", step=0)
        if built.device.type == "cuda":
            torch.cuda.synchronize()

    return run


def items_of(x: Tensor) -> dict[str, float]:
    """The usual way to some of the statistics: an operation and a wait for each."""
    x = x.detach()
    return {
        "mean": x.mean().item(),
        "var": x.var(correction=0).item(),
        "rms": x.square().mean().sqrt().item(),
        "absmax": x.abs().max().item(),
        "absmean": x.abs().mean().item(),
        "nonfinite": (~x.isfinite()).sum().item(),
        "zeros": (x == 0).sum().item(),
    }


def step_with_items(built: Built) -> TimedStep:
    """One training step, and `items_of` at sites, of weights and of all gradients."""
    run, found = step(built, record=False), []

    def measure(x: Tensor) -> None:
        found.append(items_of(x))

    def on_forward(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            measure(output)
            output.register_hook(measure)

    def measured() -> None:
        hooks = [m.register_forward_hook(on_forward) for m in set(built.model.sites().values())]
        run()
        for p in built.model.parameters():
            measure(p)
            if p.grad is not None:
                measure(p.grad)
        for hook in hooks:
            hook.remove()
        found.clear()

    return measured


def step_of_nanogpt(built: Built) -> TimedStep:
    """The same network and batch, written without this package's model and optimizer."""
    vocab = built.model.embed.wte.shape[0]
    run = nanogpt_step(built.config, vocab, train_batch(built, 0))

    def whole() -> None:
        run()
        if built.device.type == "cuda":
            torch.cuda.synchronize()

    return whole


def variants(args: argparse.Namespace) -> dict[str, TimedStep]:
    """Name -> step; the first is what the others are compared with."""
    if not KNOBS["threads"].legal.test(args.threads):
        raise ConfigError("threads", args.threads, f"must be {KNOBS['threads'].legal.text}")
    torch.set_num_threads(args.threads)
    config = bench_config(args.depth, args.width, args.context, compiled=False)
    eager = build(config)
    found = {"eager": step(eager, record=False), "eager, recorded": step(eager, record=True)}
    found[NANOGPT] = step_of_nanogpt(eager)
    for kind in KINDS if args.kinds else ():
        config.record.kinds = [kind]
        found[f"eager, {kind} recorded"] = step(build(config), record=True)
    if args.kinds:
        found["eager, hooks with .item()"] = step_with_items(eager)
    if args.compile:
        compiled = build(bench_config(args.depth, args.width, args.context, compiled=True))
        found["compiled"] = step(compiled, record=False)
        found["compiled, recorded"] = step(compiled, record=True)
    return found


def measure(
    found: Mapping[str, TimedStep], rounds: int, console: Console
) -> dict[str, list[float]]:
    """Seconds of each variant in each round."""
    for run in found.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in track(range(rounds), "rounds", console=console, disable=not console.is_terminal):
        for name, run in found.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    return times


NUMBERS = {
    "depth": (6, "blocks L"),
    "width": (64, "features d of the residual stream"),
    "context": (64, "tokens T of a sequence"),
    "rounds": (30, "times that each variant is timed"),
    "threads": (1, "CPU threads"),
}
"""Options that take a whole number >= 1: default and meaning."""


def _parser() -> argparse.ArgumentParser:
    parser = shell.command_parser(
        "bench", "Time recorded and unrecorded steps in turn, in one process; give their ratio."
    )
    for name, (default, what) in NUMBERS.items():
        parser.add_argument(
            f"--{name}", type=_positive, default=default, metavar="N",
            help=f"{what} (default: %(default)s)",
        )  # fmt: skip
    parser.add_argument(
        "--kinds", action="store_true",
        help="time each kind alone, and hooks that call .item() for each statistic",
    )  # fmt: skip
    parser.add_argument("--compile", action="store_true", help="time compiled blocks as well")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the times there as well")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number >= 1")
    return int(text)


@shell.quiet_exit
def main(argv: list[str] | None = None) -> int:
    """The command."""
    args = _parser().parse_args(argv)
    shell.allow_deep_stack()
    console = Console()
    try:
        found = variants(args)
    except ConfigError as error:
        print(f"stability.bench: {error}", file=sys.stderr)
        return 2
    times = measure(found, args.rounds, console)
    console.print(table(times, f"one step, L = {args.depth}, d = {args.width}, T = {args.context}"))
    console.print(f"eager / {NANOGPT}: {ratio(times, 'eager', NANOGPT):.2f}")
    if args.json:
        sizes = {name: getattr(args, name) for name in NUMBERS}
        machine = {"torch": torch.__version__, "device": device_name(device_of(Config()))}
        try:
            write_json(args.json, {**machine, **sizes, "seconds": times})
        except OSError as error:
            print(f"stability.bench: --json {args.json}: {error.strerror}", file=sys.stderr)
            return 2
    return 0


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> float:
    """Median over rounds of the ratio of two variants' times in the same round."""
    return median(a / b for a, b in zip(times[name], times[base], strict=True))


def table(times: Mapping[str, list[float]], title: str) -> Table:
    """A row for each variant; a variant is compared with the first and with its own base."""
    first = median(next(iter(times.values())))
    made = Table(title=title)
    for name in ("variant", "ms (median)", "ratio", "ratio if every 10th step is recorded"):
        made.add_column(name, justify="right" if name != "variant" else "left")
    for name, seconds in times.items():
        base = median(times[name.partition(",")[0]])
        tenth = (9 * base + median(seconds)) / 10 / base
        cells = (f"{1e3 * median(seconds):.1f}", f"{median(seconds) / first:.2f}")
        made.add_row(name, *cells, f"{tenth:.2f}" if "," in name else "")
    return made


if __name__ == "__main__":
    sys.exit(main())
