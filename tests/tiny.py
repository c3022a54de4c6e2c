"""A run small enough for a test: its config, composed without Hydra, and what it leaves behind."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pandas as pd
from omegaconf import OmegaConf

from stability.config import instantiate
from stability.config.knobs import GROUPS, Config
from stability.config.rules import validate

CONF = Path(__file__).parents[1] / "conf"
CHOICES = {
    "norm": "pre",
    "norm_type": "layernorm",
    "init": "xavier",
    "activation": "gelu",
    "optimizer": "adamw",
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


def placements_of_one_stream() -> list[str]:
    """The options of ``norm`` that carry one stream: those that the theory covers."""
    targets = {name: _option("norm", name).build["_target_"] for name in options("norm")}
    return [n for n, t in targets.items() if len(instantiate.resolve(t, "norm").streams) == 1]


def classes(group: str) -> set[type]:
    """The class of every option of a group."""
    targets = [_option(group, name).build["_target_"] for name in options(group)]
    return {instantiate.resolve(target, group) for target in targets}


def composed(changes: dict[str, Any] | None = None, **choices: str) -> dict[str, Any]:
    """A run's config as plain containers: defaults, the chosen options, then changes by key."""
    own = _option("model", choices.get("model", CHOICES["model"])).copy()
    of_model = {}
    for chosen in own.pop("defaults", []):
        ((group, option),) = chosen.items()
        of_model[group.removeprefix("override /")] = option
    choices = CHOICES | of_model | choices
    chosen = {g: _option(g, o) for g, o in choices.items()} | {"model": own}
    defaults = asdict(Config())
    del defaults["choices"]
    merged = OmegaConf.merge(defaults, chosen.pop("model"), chosen)
    for key, value in (changes or {}).items():
        OmegaConf.update(merged, key, value, merge=False, force_add=True)
    plain = OmegaConf.to_container(merged, resolve=True)
    assert isinstance(plain, dict)
    return plain | {"choices": choices}


@cache
def _option(group: str, name: str) -> Any:
    return OmegaConf.load(CONF / group / f"{name}.yaml")


def make_config(changes: dict[str, Any] | None = None, **over: Any) -> Config:
    """A legal config of a tiny run; both arguments choose options of groups and set keys."""
    values = TINY | (changes or {}) | over
    choices = {k: values.pop(k) for k in GROUPS if k in values}
    return validate(composed(values, **choices))


class Ran(NamedTuple):
    """A finished run: run.json, both tables, and what it was built of (as training left it)."""

    info: dict[str, Any]
    layers: pd.DataFrame
    steps: pd.DataFrame
    built: Any
    folder: Path

    def rows(self, **where: Any) -> pd.DataFrame:
        """The rows of `layers` at a step, layer, sublayer, site, kind, as far as given."""
        found = self.layers
        for name, wanted in where.items():
            found = found[found[name] == wanted]
        return found

    def value(self, column: str, **where: Any) -> Any:
        """The one value of a column there."""
        (value,) = self.rows(**where)[column]
        return value


def run(config: Config, folder: Path, prepare: Callable[[Any], object] = lambda built: None) -> Ran:
    """Run a config to its finished folder; ``prepare`` may tamper with each model that is built.

    The first is the one that is trained; a run that breaks is repeated on another.
    """
    from stability.model import build
    from stability.training import failure_replay, job

    made: list[Any] = []

    def build_and_keep(config: Config) -> Any:
        made.append(build.build(config))
        prepare(made[-1])
        return made[-1]

    patched = [
        mock.patch.object(module, "build", build_and_keep) for module in (job, failure_replay)
    ]
    with patched[0], patched[1]:
        info = job.execute(config, folder)
    assert json.loads((folder / "run.json").read_text()) == info
    layers, steps = (pd.read_parquet(folder / f"{name}.parquet") for name in ("layers", "steps"))
    return Ran(info, layers, steps, made[0], folder)
