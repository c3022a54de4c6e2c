"""Where conf/ and experiments/ lie, and what can be chosen in them; needs little beside yaml.

In an installed wheel the two folders lie inside the package, in a checkout beside ``src/``.
"""

from collections.abc import Sequence
from pathlib import Path

import yaml

_PACKAGE = Path(__file__).resolve().parents[1]


def _find(name: str) -> Path:
    shipped = _PACKAGE / f"_{name}"
    return shipped if shipped.is_dir() else _PACKAGE.parents[1] / name


def conf_dir() -> Path:
    """The folder of the primary config and its groups."""
    return _find("conf")


def experiments_dir() -> Path:
    """The folder of the sweeps that are kept."""
    return _find("experiments")


def options(group: str, config_dirs: Sequence[Path] = ()) -> list[str]:
    """Names that a group may take: its yaml files in conf/ and in the user's folders."""
    folders = [conf_dir() / group, *(folder / group for folder in config_dirs)]
    return sorted({p.stem for folder in folders for p in folder.glob("*.yaml")})


def defaults() -> dict[str, str]:
    """Group -> the option it has where none is chosen."""
    listed = yaml.safe_load((conf_dir() / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    return {k: v for entry in listed if isinstance(entry, dict) for k, v in entry.items()}


def experiments(config_dirs: Sequence[Path] = ()) -> dict[str, Path]:
    """The file of every experiment by its name; a user's own hides a built-in one."""
    folders = [experiments_dir(), *(folder / "experiments" for folder in config_dirs)]
    return {p.stem: p for folder in folders for p in sorted(folder.glob("*.yaml"))}
