"""Run folders made from laws instead of training, in the layout that runs leave on disk.

Every number follows from `VARIANCE`, `GRADIENT` and the arguments of `write_run`, so that a test
can say what a figure must show. No torch.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import yaml

from stability.config.identity import digest, flatten, identity
from stability.config.knobs import Config, lookup
from stability.results.frames import sweep_rows
from stability.results.parquet import Writer
from stability.results.schema import CONFIG_FILE, FORMAT, RUN_FILE
from stability.results.sweep_rows import SweepRows

CONF = Path(__file__).parents[1] / "conf"

VARIANCE: dict[str, Callable[[float], float]] = {
    "pre": lambda x: 0.5 + 0.3 * x,
    "post": lambda x: 1.0,
    "none": lambda x: math.exp(0.4 * x),
    "plain": lambda x: math.exp(-0.4 * x),
    "peri": lambda x: 0.5 + 2 * x,
    "deepnorm": lambda x: 1.0,
}
"""Variance of the residual stream after x blocks; the embedding's is 8e-4 whatever the norm."""

GRADIENT: dict[str, Callable[[float, int], float]] = {
    "pre": lambda x, depth: 1 / math.sqrt(0.5 + 0.3 * x),
    "post": lambda x, depth: 1.0,
    "none": lambda x, depth: math.exp(0.3 * (depth - x)),
    "plain": lambda x, depth: math.exp(-0.3 * (depth - x)),
    "peri": lambda x, depth: 1 / math.sqrt(0.5 + 2 * x),
    "deepnorm": lambda x, depth: 1.0,
}
"""rms of dL/dx after x blocks of `depth`, times 1e-5."""

MATRICES = {"attn": ("q", "k", "v", "attn_out"), "mlp": ("mlp_in", "mlp_out")}
TOKEN_GROUPS = ("first", "quarter", "rest")
VOCAB, UNIGRAM, BIGRAM = 97, 3.1, 2.3
FINFO = {
    "fp16": {"max": 65504.0, "tiny": 2.0**-14, "eps": 2.0**-10, "smallest_subnormal": 2.0**-24},
    "bf16": {"max": 3.39e38, "tiny": 2.0**-126, "eps": 2.0**-7, "smallest_subnormal": 9.2e-41},
    "fp32": {"max": 3.4e38, "tiny": 2.0**-126, "eps": 2.0**-23, "smallest_subnormal": 1.4e-45},
    "fp64": {"max": 1.8e308, "tiny": 2.0**-1022, "eps": 2.0**-52, "smallest_subnormal": 5e-324},
}


def config_of(overrides: dict[str, Any]) -> dict[str, Any]:
    """A resolved config from group choices and dotted keys, as Hydra would compose it."""
    config = asdict(Config())
    chosen = {"norm": "pre", "norm_type": "layernorm", "init": "xavier", "data": "markov"}
    chosen |= {"activation": "gelu", "optimizer": "adamw"}
    chosen |= {k: v for k, v in overrides.items() if k in chosen}
    for group, option in chosen.items():
        found = CONF / group / f"{option}.yaml"
        settings = yaml.safe_load(found.read_text()) if found.exists() else {"label": option}
        config[group] |= settings
    config["choices"] = {**chosen, "model": "nano"}
    for key, value in overrides.items():
        if key not in chosen:
            *parents, last = key.split(".")
            (lookup(config, ".".join(parents)) if parents else config)[last] = value
    for group in chosen:
        build = config[group]["build"]
        for name, value in build.items():
            if isinstance(value, str) and value.startswith("${"):
                build[name] = lookup(config, value[2:-1])
    return config


def layer_rows(config: dict[str, Any], step: int, noise: float, bad_from: int | None) -> list[dict]:
    """All rows of one recorded step. From layer `bad_from` on nothing is finite."""
    norm, depth = config["choices"]["norm"], config["depth"]
    width, tokens = config["model"]["width"], 512
    variance = VARIANCE.get(norm, VARIANCE["pre"])
    gradient = GRADIENT.get(norm, GRADIENT["pre"])
    drift = 1 + step / 100
    rows: list[dict] = []

    def row(layer: int, sublayer: str, site: str, kind: str, rms: float, **more: Any) -> None:
        broken = bad_from is not None and layer >= bad_from and kind in ("act", "grad")
        numel = more.pop("numel", tokens * width)
        stats = {"mean": 0.0, "var": rms**2, "rms": rms, "absmax": 4 * rms, "absmean": 0.8 * rms}
        stats |= {"nonfinite": 0, "zeros": 0, "subnormal": 0, "near_max": 0} | more
        if broken:
            stats = {k: math.nan if isinstance(v, float) else v for k, v in stats.items()}
            stats["nonfinite"] = numel
        key = {"step": step, "layer": layer, "sublayer": sublayer, "site": site, "kind": kind}
        rows.append({**key, "numel": numel, **stats})

    def stream(layer: int, sublayer: str, site: str, x: float) -> None:
        rms = math.sqrt(variance(x) * noise * drift) if x > 0 else 0.02 * math.sqrt(2)
        row(layer, sublayer, site, "act", rms, first_share=1 / 64, token_rms_median=rms)
        share = 1 - math.exp(-0.05 * (depth - x)) if norm == "post" else 1 / 64
        rms = 1e-5 * gradient(x, depth) * noise
        median = rms * math.sqrt((1 - share) * 64 / 63)
        row(layer, sublayer, site, "grad", rms, first_share=share, token_rms_median=median)

    def matrix(layer: int, sublayer: str, name: str, scale: float) -> None:
        row(layer, sublayer, name, "weight", 0.1, numel=width * width)
        row(layer, sublayer, name, "weight_grad", 1e-3 * scale * noise, numel=width * width)
        row(layer, sublayer, name, "update", 1e-4 * scale, numel=width * width, lost=0)

    stream(-1, "embed", "resid_post", 0)
    matrix(-1, "embed", "wte", 1)
    for layer in range(depth):
        for half, sublayer in enumerate(("attn", "mlp")):
            stream(layer, sublayer, "resid_pre", layer + half / 2)
            stream(layer, sublayer, "branch_in", layer + half / 2)
            stream(layer, sublayer, "branch_out", layer + half / 2)
            stream(layer, sublayer, "resid_post", layer + (half + 1) / 2)
            for i, name in enumerate(MATRICES[sublayer]):
                matrix(layer, sublayer, name, (i + 1) * gradient(layer + 1, depth))
                matrix(layer, sublayer, f"{name}.bias", 1)
            matrix(layer, sublayer, "norm.weight", 1)
        row(layer, "attn", "scores", "act", 1.0 + layer / 10)
        row(layer, "attn", "attn_rows", "act", 3.0, mean=3.2 / (1 + layer / 50))
    stream(depth, "head", "resid_pre", depth)
    stream(depth, "head", "branch_in", depth)
    row(depth, "head", "branch_out", "act", 1.0, numel=tokens * VOCAB)
    return rows


def losses(config: dict[str, Any], steps: int, noise: float) -> np.ndarray:
    """Training loss of each step: from ln V towards a floor that depth lowers."""
    t = np.arange(steps)
    floor = 2.4 - 0.05 * math.log(config["depth"]) + (config["choices"]["norm"] == "post") * 0.5
    return floor + (math.log(VOCAB) - floor) * np.exp(-t / 30) + 0.05 * (noise - 1) * np.sin(t)


def write_run(
    sweep: Path,
    overrides: dict[str, Any],
    steps: int = 41,
    every: int = 20,
    status: str = "completed",
    bad_step: int | None = None,
    bad_layer: int = 0,
    close: bool = True,
    rows: bool = True,
    data_hash: str = "d" * 64,
    subnormal: int = 0,
    largest_score: float | None = None,
) -> Path:
    """Write one run folder and return it.

    With `bad_step` the run diverges there: the step's loss and layers from `bad_layer` on are NaN.
    The gradient of the first block's output has so many `subnormal` entries, and attention scores
    are up to `largest_score` where it is given.
    """
    config = config_of({"train.steps": steps, "record.every": every, **overrides})
    what = identity(Config.from_plain(config), data_hash)
    run = digest(what)
    varied = "_".join(f"{k.rpartition('.')[2]}-{v}" for k, v in overrides.items())
    folder = sweep / f"{varied}_{run}"
    folder.mkdir(parents=True)
    draw = int.from_bytes(hashlib.blake2b(varied.encode(), digest_size=4).digest()) / 2**32
    noise = math.exp(0.3 * (draw - 0.5))
    last = steps - 1 if bad_step is None else bad_step
    loss = losses(config, last + 1, noise)
    if bad_step is not None:
        status, loss[-1] = "diverged", math.nan
    recorded = sorted({*range(0, last + 1, every), last})
    metadata = {"stability.config": json.dumps(config), "stability.run": run}
    for table, make in (
        (
            "layers",
            lambda: _with_score(
                _layers(config, recorded, noise, bad_step, bad_layer, subnormal), largest_score
            ),
        ),
        ("steps", lambda: _steps(config, loss)),
        ("probes", lambda: _probes(config, recorded, noise, bad_step, bad_layer)),
    ):
        writer = Writer(folder, table, metadata)
        columns = make() if rows else {}
        if columns:
            n = len(columns["step"])
            writer.append({"run": [run] * n, **columns})
            writer.flush()
        if close and status != "running":
            writer.close()
    state = _state(config, run, folder.name, status, bad_step, bad_layer, loss, what, data_hash)
    (folder / CONFIG_FILE).write_text(yaml.safe_dump(config))
    (folder / RUN_FILE).write_text(json.dumps(state))
    return folder


def _columns(rows: list[dict]) -> dict[str, list]:
    names = {name for row in rows for name in row}
    return {name: [row.get(name) for row in rows] for name in names}


def _with_score(columns: dict[str, list], largest: float | None) -> dict[str, list]:
    """Columns of the layers table in which every score's largest magnitude is this."""
    if largest is None or not columns:
        return columns
    pairs = zip(columns["site"], columns["absmax"], strict=True)
    return columns | {"absmax": [largest if site == "scores" else own for site, own in pairs]}


def _layers(
    config: dict[str, Any],
    recorded: Iterable[int],
    noise: float,
    bad: int | None,
    layer: int,
    subnormal: int,
) -> dict[str, list]:
    rows = [r for t in recorded for r in layer_rows(config, t, noise, layer if t == bad else None)]
    for row in rows:
        if (row["kind"], row["site"], row["layer"]) == ("grad", "resid_post", 0):
            row["subnormal"] = subnormal
    return _columns(rows)


POSITIONS = 8


def token_share(config: dict[str, Any], layer: int, position: int) -> float:
    """Share of a position of the mean square gradient of the block's output, times the positions.

    In Post-LN position 0 has all of it but e^(-(blocks above)), elsewhere the positions are alike.
    """
    if config["choices"]["norm"] != "post":
        return 1.0
    left = math.exp(layer + 1 - config["depth"])
    return 1 + (1 - left) * (POSITIONS - 1) if position == 0 else left


def _probes(
    config: dict[str, Any], recorded: Iterable[int], noise: float, bad: int | None, layer: int
) -> dict[str, list]:
    """Of the probe `token_grad`: values of every position, and of every part of a weight."""
    names = [f"{m}.{group}" for g in MATRICES.values() for m in g for group in TOKEN_GROUPS]
    gradient = GRADIENT.get(config["choices"]["norm"], GRADIENT["pre"])
    rows = []
    for step, at, sublayer in product(recorded, range(config["depth"]), MATRICES):
        square = (1e-5 * gradient(at + 1, config["depth"]) * noise) ** 2
        values = {str(t): square * token_share(config, at, t) for t in range(POSITIONS)}
        own = [n for n in names if n.partition(".")[0] in MATRICES[sublayer]]
        values |= {n: 1e-3 * (1 + TOKEN_GROUPS.index(n.partition(".")[2])) for n in own}
        broken = step == bad and at >= layer
        place = {"step": step, "layer": at, "sublayer": sublayer, "probe": "token_grad"}
        rows += [
            {**place, "item": item, "value": math.nan if broken else value}
            for item, value in values.items()
        ]
    return _columns(rows + _other_probes(config, recorded, noise, bad, layer))


PROBE_ITEMS = {
    "lesion": {"block": ("rise",)},
    "jacobian": {"attn": ("sublayer", "branch"), "mlp": ("sublayer", "branch"), "block": ("tail",)},
    **dict.fromkeys(("norm_sigma", "token_mean", "norm_bytes"), dict.fromkeys(MATRICES, ("norm",))),
    "norm_jacobian": dict.fromkeys(MATRICES, ("error", "spectral", "inverse_sigma")),
    "token_cosine": dict.fromkeys(MATRICES, ("act", "grad")),
    **dict.fromkeys(("linear_gain", "outer_product"), MATRICES),
    "model_update": {"head": ("change",)},
    "output_change": {"head": ("change",)},
}
"""Probe -> sublayer -> items; ``token_grad`` apart."""


def _other_probes(
    config: dict[str, Any], recorded: Iterable[int], noise: float, bad: int | None, layer: int
) -> list[dict]:
    """Of each other probe: noise times 1 + block, at the head times 1 + step."""
    depth, rows = config["depth"], []
    for (probe, places), step in product(PROBE_ITEMS.items(), recorded):
        for sublayer, items in places.items():
            head = sublayer == "head"
            for at, item in product([depth] if head else range(depth), items):
                broken = step == bad and at >= layer
                value = math.nan if broken else noise * (1 + (step if head else at)) / 10
                place = {"step": step, "layer": at, "sublayer": sublayer, "probe": probe}
                rows.append({**place, "item": item, "value": value})
    return rows


def _steps(config: dict[str, Any], loss: np.ndarray) -> dict[str, list]:
    evaluated = config["train"]["eval_every"]
    return _columns(
        [
            {
                "step": t,
                "tokens": t * 512,
                "loss": float(value),
                "val_loss": float(value) + 0.05 if t % evaluated == 0 else None,
                "lr": 1e-3,
                "grad_norm": 1.0,
                "skipped": False,
                "spike": False,
                "step_s": 0.02,
                "record_s": 0.001,
            }
            for t, value in enumerate(loss)
        ]
    )


def _state(
    config: dict[str, Any],
    run: str,
    folder: str,
    status: str,
    bad_step: int | None,
    bad_layer: int,
    loss: np.ndarray,
    what: dict[str, Any],
    data_hash: str,
) -> dict[str, Any]:
    bad = bad_step is not None
    where = {"step": bad_step, "layer": bad_layer, "sublayer": "attn"}
    info = {"sha256": data_hash, "vocab": VOCAB, "train_tokens": 10**6, "val_tokens": 10**5}
    info |= {"unigram_entropy": UNIGRAM, "bigram_entropy": BIGRAM, "entropy_rate": None}
    done = status in ("completed", "diverged")
    return {
        "format": FORMAT,
        "run": run,
        "folder": folder,
        "status": status,
        "outcome": "diverged" if bad else status,
        "first_bad": {**where, "site": "resid_post", "kind": "act"} if bad else None,
        "steps_done": len(loss),
        "final_loss": float(loss[-1]) if done else None,
        "final_val_loss": float(loss[-1]) + 0.05 if done and not bad else None,
        "learned": bool(loss[-1] < UNIGRAM - 0.3) if done else None,
        "identity": what,
        "git": {"revision": "abc1234", "dirty": False},
        "versions": {"python": "3.11.7", "torch": "2.13.0", "numpy": "2.3", "stability": "0.1.0"},
        "device": "cpu",
        "finfo": {"dtype": config["dtype"], **FINFO[config["dtype"].removeprefix("amp_")]},
        "data": info,
        "parameters": 50_000 * config["depth"],
        "started": "2025-01-01T00:00:00+00:00",
        "finished": "2025-01-01T00:01:00+00:00" if done else None,
        "seconds": 60.0,
        "record_seconds": 1.0,
        "error": None,
        "command": "python -m stability.run -m norm=pre,post",
        "pid": 1,
        "host": "host",
    }


def write_sweep(sweep: Path, axes: dict[str, list[Any]], **options: Any) -> list[Path]:
    """One run per cell of the grid; `options` go to `write_run`."""
    cells = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    return [write_run(sweep, cell, **options) for cell in cells]


def row_of(folder: Path) -> dict[str, Any]:
    """The flattened config of a run, for slow twins."""
    return flatten(yaml.safe_load((folder / CONFIG_FILE).read_text()))


def recorded(path: Path, module: ModuleType) -> SweepRows:
    """The rows that a figure reads."""
    return sweep_rows(path, module.TABLE, module.COLUMNS, module.WHERE)


def numbers(path: Path, module: ModuleType) -> SweepRows:
    """The numbers that a figure draws."""
    found: SweepRows = module.data(recorded(path, module))
    return found
