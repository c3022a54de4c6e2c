"""Sweeps in memory: the runs that experiments plan, with numbers that follow laws.

Weights have the gain d std^2 = 2. Laws are over b = 0 .. L, the blocks passed.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from measure_rows import ROW, RUN
from stability.claims.claim import Claim
from stability.claims.departures import planned
from stability.claims.sweep_data import SweepData
from stability.claims.yaml_types import DERIVED
from stability.config import folders
from synthetic import FINFO

Run = dict[str, Any]
Law = Callable[[np.ndarray], np.ndarray]
GAIN = 2.0
SEEDS = 6
"""With five, none of them is no proof that less than half do it."""
DEFAULTS = {
    "data": "markov", "norm": "pre", "norm_type": "layernorm", "depth": 6, "model.context": 64,
    "train.batch_size": 8, "data.pad_share": 0.0,
    "model.width": 64, "model.sublayers": "attn_mlp", "dtype": "fp32",
}  # fmt: skip
EMPTY = {
    "layers": ["run", "step", "layer", "sublayer", "site", "kind"],
    "steps": ["run", "step", "loss", "step_s"],
    "probes": ["run", "step", "layer", "sublayer", "probe", "item", "value"],
}


@dataclass
class Made:
    """What one run leaves: columns of its row in ``runs``, and rows of the tables."""

    run: Run = field(default_factory=dict)
    layers: list[Run] = field(default_factory=list)
    steps: list[Run] = field(default_factory=list)
    probes: list[Run] = field(default_factory=list)


World = Callable[[Run], Made]
"""A run's config -> its numbers."""


def stream(run: Run, var: Law | None = None, grad: Law | None = None) -> Made:
    """The outputs of the blocks: variance, and the gradient's norm, of all and the median token."""
    passed = np.arange(run["depth"] + 1)
    rows = []
    if var is not None:
        rows += [_output(b, kind="act", var=v, rms=math.sqrt(v)) for b, v in enumerate(var(passed))]
    if grad is not None:  # four entries: the norm is twice the rms
        sizes = enumerate(grad(passed))
        rows += [_output(b, kind="grad", rms=g / 2, token_rms_median=g / 2) for b, g in sizes]
    return Made(layers=rows)


def _output(blocks: int, **numbers: Any) -> Run:
    return {"layer": blocks - 1, "sublayer": "mlp" if blocks else "embed", **numbers}


def overflowing(run: Run, share_of_law: float) -> Made:
    """Linear branches that are not finite from a share of the law's sublayer on."""
    start, z, numel = 0.03, 4.46, 65536  # z: the expected largest of so many normals
    law = 2 * math.log(run["finfo.max"] / (z * start)) / math.log(1 + GAIN)
    first = round(share_of_law * law)
    rows = [_output(b, nonfinite=int(b >= first), numel=numel) for b in range(run["depth"] + 1)]
    return Made(layers=[row | {"var": start**2} for row in rows])


def probe(name: str, values: Mapping[tuple[int, str, str], float]) -> Made:
    """Rows of a probe: (layer, sublayer, item) -> value."""
    return Made(
        probes=[
            {"probe": name, "layer": layer, "sublayer": sublayer, "item": item, "value": value}
            for (layer, sublayer, item), value in values.items()
        ]
    )


def lesion(rise: float) -> Made:
    """Of a net that has learned 1 nat, below a unigram entropy of 3."""
    return probe("lesion", {(9, "head", "intact"): 2.0, (0, "block", "rise"): rise})


def sublayers(run: Run, **values: float) -> Iterator[tuple[int, str, float]]:
    for layer in range(run["depth"]):
        yield from ((layer, name, value) for name, value in values.items())


def jacobian(run: Run, power: float) -> Made:
    """Sublayer k reads a stream of variance k; its branch's Jacobian is sigma^power."""
    made, norms = Made(), {}
    for k, (layer, name, _) in enumerate(sublayers(run, attn=0.0, mlp=0.0), start=1):
        where = {"layer": layer, "sublayer": name, "site": "resid_pre"}
        made.layers.append({**where, "var": float(k)})
        norms[layer, name, "branch"] = math.sqrt(k) ** power
    made.probes = probe("jacobian", norms).probes
    return made


def norm_product(run: Run, share: float) -> Made:
    """Norms of 1/sigma = 0.8; the gradient falls by a share of their product, in logarithms."""
    places = [(n, s) for n, s, _ in sublayers(run, attn=0.0, mlp=0.0)]
    made = probe("norm_sigma", {(n, s, "norm"): 0.8 for n, s in places})
    per_block = share * 2 * math.log(0.8)
    made.layers = stream(run, grad=lambda b: np.exp(per_block * (run["depth"] - b))).layers
    return made


def weight_gradients(run: Run, ratio: float) -> Made:
    """Of the last block, that many times those of the first: all tokens and each group."""
    ends = ((0, 1.0), (run["depth"] - 1, ratio))
    made = Made()
    for (layer, size), weight in product(ends, ("mlp_in", "mlp_out")):
        made.layers.append({"layer": layer, "site": weight, "kind": "weight_grad", "rms": size})
        groups = {(layer, "mlp", f"{weight}.{g}"): size for g in ("first", "quarter", "rest")}
        made.probes += probe("token_grad", groups).probes
    return made


def trained(val: float | None, train: float = 2.0, seconds: float = 1.0) -> Made:
    """A run's validation loss (None: it diverged), training loss and seconds of a step."""
    learned = val is not None and val < RUN["data.unigram_entropy"] - 0.3
    status = "completed" if val is not None else "diverged"
    return Made(
        {"final_val_loss": val, "learned": learned, "status": status},
        steps=[{"loss": train, "step_s": seconds}],
    )


def overflow_step(step: int) -> Made:
    place = {"layer": 1, "sublayer": "mlp", "site": "resid_post", "kind": "act"}
    return Made({f"first_bad.{k}": v for k, v in {"step": step, **place}.items()})


def lost(share: float) -> Made:
    return Made(layers=[{"kind": "update", "numel": 1000, "lost": round(1000 * share)}])


def gain(value: float) -> Made:
    sites = {"branch_in": 1.0, "branch_out": value}
    return Made(layers=[{"site": site, "rms": rms} for site, rms in sites.items()])


def sweeps(claim: Claim, world: World) -> dict[str, SweepData]:
    """The sweeps that a claim needs, made up."""
    files = folders.experiments()
    return {name: sweep(files[name], world) for name in claim.sweeps}


def sweep(file: Path, world: World) -> SweepData:
    """Every run that an experiment plans, of `SEEDS` seeds."""
    plan = {key: list(values) for key, values in planned(file).items()}
    plan["seed"] = plan["seed"][:SEEDS]
    tables: dict[str, list[Run]] = {name: [] for name in EMPTY}
    runs = []
    for n, values in enumerate(product(*plan.values())):
        config = DEFAULTS | dict(zip(plan, map(_number, values), strict=True))
        config |= {"finfo.max": FINFO.get(config["dtype"], {"max": 1e308})["max"]}
        made = world(config | {"sweep": file.stem})
        std = math.sqrt(GAIN / config["model.width"])
        runs.append(RUN | config | {"run": str(n), "init.build.std": std} | made.run)
        for table, base in (("layers", ROW), ("steps", {"step": 0}), ("probes", {"step": 0})):
            tables[table] += [base | row | {"run": str(n)} for row in getattr(made, table)]
    data = SweepData(file.with_suffix(""))
    frame = pd.DataFrame(runs)
    data.runs = frame.assign(**{key: frame[a] * frame[b] for key, (a, b) in DERIVED.items()})
    data._tables = {n: pd.DataFrame(rows or None, None, None if rows else EMPTY[n])
                    for n, rows in tables.items()}  # fmt: skip
    return data


def _number(value: object) -> object:
    """A value of a plan as a run's row has it."""
    try:
        number = float(str(value))
    except ValueError:
        return value
    return int(number) if number.is_integer() else number
