"""The plan of a sweep on disk: its checked runs, the dearest first, for commands without Hydra.

``plan.jsonl`` has one line for each run: hash, label, folder, the user's folders, and config.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from stability.config import instantiate
from stability.config.identity import digest, identity
from stability.config.knobs import ConfigError
from stability.config.rules import validate
from stability.parts import data
from stability.results import atomic
from stability.results.atomic import Unreadable
from stability.sweep.grid import Cell
from stability.sweep.shards import cost

PLAN_FILE = "plan.jsonl"


def write(cells: Sequence[Cell], config_dirs: Sequence[Path]) -> Path:
    """Write the plan of all runs of a sweep into its folder.

    Args:
        cells: the runs.
        config_dirs: the user's folders, whose modules may be built.
    """
    trusted = [str(folder.resolve()) for folder in config_dirs]
    with atomic.writing(path := cells[0].folder.parent / PLAN_FILE, "w") as file:
        for cell in sorted(cells, key=lambda cell: -cost(cell.config)):
            line = {
                "run": cell.run,
                "label": cell.label,
                "folder": cell.folder.name,
                "config_dirs": trusted,
                "config": cell.config.plain(),
            }
            file.write(json.dumps(line) + "\n")
    return path


def read(sweep: Path) -> tuple[list[Cell], list[Path]]:
    """The runs that a plan names, in its order, and the user's folders.

    Raises:
        Unreadable: there is no plan, or it is damaged.
        ConfigError: a config is refused, or is another run here: the data or the code changed.
    """
    try:
        lines = [json.loads(line) for line in (sweep / PLAN_FILE).read_text("utf-8").splitlines()]
        trusted = [Path(name) for name in lines[0]["config_dirs"]]
        for folder in trusted:
            instantiate.trust(folder)
        return [_cell(sweep, line) for line in lines], trusted
    except FileNotFoundError as error:
        raise Unreadable(f"{sweep}: has no {PLAN_FILE} (stability.run ... --plan)") from error
    except OSError as error:
        raise Unreadable(f"{sweep / PLAN_FILE}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, LookupError) as error:
        raise Unreadable(f"{sweep / PLAN_FILE}: is damaged") from error


def _cell(sweep: Path, line: dict[str, object]) -> Cell:
    config = validate(line["config"])  # type: ignore[arg-type]
    instantiate.allow(*config.allow)
    held = identity(config, data.source(config).sha256)
    run, name = str(line["run"]), str(line["folder"])
    if digest(held) != run:
        raise ConfigError("run", run, "is another one here: the data or the code changed")
    if name != Path(name).name or not name.endswith(run):
        raise ValueError(f"{name} is no folder of run {run}")
    return Cell(config, held, run, str(line["label"]), sweep / name, ())
