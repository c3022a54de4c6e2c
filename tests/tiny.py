"""A run small enough for a test: its config, composed without Hydra, and what it leaves behind."""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from omegaconf import OmegaConf

from stability.config import GROUPS, Config, validate

CONF = Path(__file__).parents[1] / "conf"
CHOICES = {
    "norm": "pre",
    "norm_type": "layernorm",
    "init": "xavier",
    "model": "nano",
    "data": "pydocs",
}
TINY = {
    "depth": 2,
    "device": "cpu",
    "model.width": 16,
    "model.heads": 2,
    "model.context": 8,
    "train.steps": 3,
    "train.batch_size": 4,
    "train.eval_every": 0,
    "train.eval_batches": 1,
    "record.every": 1,
}


def options(group: str) -> list[str]:
    """Every option of a group that lies in conf/, in the order of legends."""
    names = [p.stem for p in (CONF / group).glob("*.yaml")]
    return sorted(names, key=lambda name: _option(group, name).order)


def composed(changes: dict[str, Any] | None = None, **choices: str) -> dict[str, Any]:
    """A run's config as plain containers: defaults, the chosen options, then changes by key."""
    choices = CHOICES | choices
    chosen = {g: _option(g, o) for g, o in choices.items()}
    merged = OmegaConf.merge(asdict(Config()), chosen.pop("model"), chosen)
    for key, value in (changes or {}).items():
        OmegaConf.update(merged, key, value, merge=False, force_add=True)
    plain = OmegaConf.to_container(merged, resolve=True)
    assert isinstance(plain, dict)
    return plain | {"choices": choices}


@cache
def _option(group: str, name: str) -> Any:
    return OmegaConf.load(CONF / group / f"{name}.yaml")


def make_config(changes: dict[str, Any] | None = None, **over: Any) -> dict[str, Any]:
    """A legal config of a tiny run; ``over`` chooses options of groups and sets top-level keys."""
    choices = {k: over.pop(k) for k in GROUPS if k in over}
    config = composed(TINY | (changes or {}) | over, **choices)
    validate(config)
    return config


class Ran(NamedTuple):
    info: dict[str, Any]
    layers: pd.DataFrame
    steps: pd.DataFrame
    folder: Path

    def value(self, column: str, site: str, kind: str = "act", **place: Any) -> Any:
        """The one value of a column at a site, by step, layer and sublayer as far as needed."""
        rows = self.layers[(self.layers.site == site) & (self.layers.kind == kind)]
        for name, wanted in place.items():
            rows = rows[rows[name] == wanted]
        (value,) = rows[column]
        return value


def run(config: dict[str, Any], folder: Path) -> Ran:
    """Run a config to its finished folder and read what it left."""
    from stability import job

    info = job.execute(config, folder)
    assert json.loads((folder / "run.json").read_text()) == json.loads(json.dumps(info))
    tables = (pd.read_parquet(folder / f"{name}.parquet") for name in ("layers", "steps"))
    return Ran(info, *tables, folder)
