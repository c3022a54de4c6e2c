"""What a command line would run, composed and checked in this process; writes nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from stability.cli import arguments, compose, plan
from stability.config import folders, instantiate
from stability.sweep.grid import Cell


@contextmanager
def hydra_for(*words: str) -> Iterator[tuple[ConfigLoader, DictConfig]]:
    """Hydra as the command sets it up, and the config that the sweeper gets."""
    read = arguments.read(words)
    compose.register(read.experiment, read.extra)
    path = create_config_search_path(str(folders.conf_dir()))
    for folder in read.extra:
        instantiate.trust(folder)
        path.prepend("command-line", f"file://{folder.resolve()}", SearchPathQuery("schema"))
    overrides = [word for word in read.words if "=" in word]
    try:
        hydra = Hydra.create_main_hydra2("run", path)
        cfg = hydra.compose_config(
            "config", overrides, RunMode.MULTIRUN, with_log_configuration=False
        )
        cfg.name = plan.name_of(cfg)
        yield hydra.config_loader, cfg
    finally:
        GlobalHydra.instance().clear()


def planned(*words: str) -> list[Cell]:
    with hydra_for(*words) as (loader, cfg):
        typed: Any = OmegaConf.to_container(cfg.hydra.overrides.task)
        return plan.Plan(loader, cfg, cfg.hydra.sweeper.params).cells(typed)


def names(cells: list[Cell]) -> list[str]:
    return [cell.label for cell in cells]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
