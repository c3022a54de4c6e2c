"""What a command line would run, composed and checked in this process; writes nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stability.cli import compose, flags, hydra_launcher, plan
from stability.config import instantiate
from stability.sweep import grid
from stability.sweep.grid import Cell


@contextmanager
def composing(*words: str) -> Iterator[tuple[plan.Request, compose.Composer]]:
    """What the command line asks for, and Hydra as the command sets it up."""
    read = flags.parse(words)
    for folder in read.config_dirs:
        instantiate.trust(folder)
    request = plan.request(read)
    name = grid.time_stamp()
    with compose.composer(request.experiment.config, read.config_dirs, name) as composer:
        yield request, composer


def planned(*words: str) -> list[Cell]:
    with composing(*words) as (request, composer):
        hydra_launcher.config_of(request, composer)
        return plan.cells(request, composer)


def names(cells: list[Cell]) -> list[str]:
    return [cell.label for cell in cells]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
