"""The state of a training on disk: whole or absent, loaded without unpickling code.

A checkpoint holds all that the next step depends on. Batches and dropout depend on (data, seed,
step) alone, so the step's number is all of the random state there is.
"""

import logging
from pathlib import Path
from typing import Any

import torch

from stability.model.build import Built
from stability.results import atomic

log = logging.getLogger("stability")

Checkpoint = dict[str, Any]


class DamagedError(Exception):
    """A file that holds no state: what torch says of it, in one line."""


def pack(built: Built, step: int, run: str) -> Checkpoint:
    """What ``step`` starts from."""
    return {
        "run": run,
        "step": step,
        "model": built.model.state_dict(),
        "optimizer": built.optimizer.state_dict(),
        "loss_scale": built.loss_scale.state_dict(),
    }


def unpack(built: Built, state: Checkpoint) -> int:
    """Put a state into a model, its optimizer (if the state has one) and its loss scale.

    Returns:
        The step that starts from the state.
    """
    built.model.load_state_dict(state["model"])
    if "optimizer" in state:
        built.optimizer.load_state_dict(state["optimizer"])
    built.loss_scale.load_state_dict(state["loss_scale"])
    step: int = state["step"]
    return step


def save(state: Checkpoint, path: Path) -> None:
    """Write a state whole."""
    with atomic.writing(path) as file:
        torch.save(state, file)


def read(path: Path) -> Checkpoint:
    """The state in a file, on the CPU.

    Raises:
        OSError: there is no such file, or it cannot be read.
        DamagedError: the file holds something else.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # torch raises errors of many kinds for a damaged file
        raise DamagedError(str(error).partition("\n")[0]) from error
    if not isinstance(state, dict):
        raise DamagedError(f"holds a {type(state).__name__}")
    return state


def load(path: Path, run: str) -> Checkpoint | None:
    """A run's state; None if there is none, or if it is damaged or of another run.

    Raises:
        OSError: the file cannot be read, which says nothing about its content.
    """
    try:
        state = read(path)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        log.warning("%s is damaged and is not used: %s", path.name, error)
        return None
    return state if state.get("run") == run else None
