"""Sweeps on disk whose numbers follow a law, exactly or with noise, and claims about them."""

import json
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from stability.claims import syntax
from stability.claims.claim import Claim
from stability.claims.evaluate import Result, evaluate
from stability.claims.sweep_data import SweepData
from stability.claims.verdict import Verdict
from stability.config.identity import digest, identity
from stability.config.knobs import Config
from stability.results.parquet import Writer
from stability.results.schema import CONFIG_FILE, FORMAT, RUN_FILE
from synthetic import FINFO, UNIGRAM, VOCAB, config_of

Law = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""Values at n = 0 .. L, seeded."""

TOKENS = 128

EXPONENT = {
    "measure": "growth_exponent",
    "with": {"start": 4, "less_embedding": True, "least_growth": 10},
    "criterion": {"between": [0.9, 1.1]},
}
"""Parts of a claim, as a yaml states them."""
BEATS = {"measure": "exponential_over_power", "criterion": {"at_least": 0}}
SIGMA = {
    "measure": "growth_exponent",
    "with": {"quantity": "sigma"},
    "criterion": {"between": [0.45, 0.55]},
}
SLOPE = {"measure": "slope_per_sublayer", "criterion": {"between": [0.38, 0.42]}}


def node_of(*parts: dict, **node: Any) -> dict:
    """What lies under ``claim:`` in the yaml of an experiment."""
    return {"statement": "s", "source": "s", "parts": list(parts), **node}


def claim_of(*parts: dict, **node: Any) -> Claim:
    """The claim of an experiment ``q``."""
    return syntax.claim("q", node_of(*parts, **node), {})


def result_of(path: Path, *parts: dict, **node: Any) -> Result:
    """The claim of ``q``, evaluated on the sweeps of a folder."""
    sweeps = {p.name: SweepData(p) for p in path.iterdir() if p.is_dir()}
    return evaluate(claim_of(*parts, **node), sweeps, with_theory=False)


def verdict_of(path: Path, *parts: dict, **node: Any) -> Verdict:
    return result_of(path, *parts, **node).verdict


def noisy(law: Callable[[np.ndarray], np.ndarray], size: float = 0.0) -> Law:
    return lambda n, rng: law(n) * np.exp(size * rng.standard_normal(len(n)))


EXPONENTIAL = noisy(lambda n: 1e-3 * 1.5**n)
LINEAR = noisy(lambda n: 1e-3 + 0.4 * n)
FLAT = noisy(lambda n: np.ones(len(n)))
ROOT = noisy(lambda n: np.sqrt(1e-6 + 0.4 * n))


def NOISE(n: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.exp(2 * rng.standard_normal(len(n)))


def write_sweep(
    out: Path,
    name: str,
    law: Law | dict[Any, Law],
    gradient: Law = FLAT,
    seeds: Iterable[int] = range(6),
    axis: str = "",
    loss: Callable[[dict], float | None] | None = None,
    **fixed: Any,
) -> Path:
    """One run per seed (and value of the axis, where `law` is a dict of laws by value)."""
    laws = law if isinstance(law, dict) else {None: law}
    for (value, own), seed in product(laws.items(), seeds):
        overrides = {"train.steps": 0, "depth": 12, "seed": seed, **fixed}
        if axis:
            overrides[axis] = value
        _run(out / name, config_of(overrides), own, gradient, loss)
    return out / name


def _run(sweep: Path, config: dict, law: Law, gradient: Law, loss: Any) -> None:
    what = identity(Config.from_plain(config), "d" * 64)
    run, depth = digest(what), config["depth"]
    folder = sweep / f"run_{run}"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(config["seed"])
    n = np.arange(depth + 1)
    rows = [
        row
        for kind, values in (("act", law(n, rng)), ("grad", gradient(n, rng)))
        for row in _rows(kind, values, config["model"]["width"])
    ]
    writer = Writer(folder, "layers", {"stability.config": json.dumps(config)})
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    writer.append({"run": [run] * len(rows), **columns})
    writer.flush()
    writer.close()
    final = None if loss is None else loss(config)
    state = {
        "format": FORMAT,
        "run": run,
        "folder": folder.name,
        "status": "completed" if loss is None or final is not None else "diverged",
        "first_bad": None,
        "steps_done": 1,
        "final_val_loss": final,
        "learned": final is not None and final < UNIGRAM - 0.3,
        "identity": what,
        "git": {"revision": "abc1234", "dirty": False},
        "finfo": {"dtype": config["dtype"], **FINFO[config["dtype"]]},
        "data": {"sha256": "d" * 64, "vocab": VOCAB, "unigram_entropy": UNIGRAM},
    }
    (folder / CONFIG_FILE).write_text(yaml.safe_dump(config))
    (folder / RUN_FILE).write_text(json.dumps(state))


def _rows(kind: str, values: np.ndarray, width: int) -> Iterable[dict]:
    """The stream after each block: rms is the value of a gradient, var that of an activation."""
    for blocks, value in enumerate(values):
        rms = float(value if kind == "grad" else np.sqrt(value))
        yield {
            "step": 0,
            "layer": blocks - 1,
            "sublayer": "mlp" if blocks else "embed",
            "site": "resid_post",
            "kind": kind,
            "numel": TOKENS * width,
            "var": rms**2,
            "rms": rms,
            "token_rms_median": rms / 2,
            "nonfinite": 0,
        }
