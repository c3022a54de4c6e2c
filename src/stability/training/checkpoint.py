"""The state of a training on disk: whole or absent, loaded without unpickling code.

A checkpoint holds all that the next step depends on. Batches and dropout depend on (data, seed,
step) alone, so the step's number is all of the random state there is.
"""

from pathlib import Path
from typing import Any

import torch

from stability.model.build import Built, model_of, optimizer_of
from stability.parts.precision import LossScale
from stability.results import atomic

State = dict[str, Any]


def pack(built: Built, step: int, run: str) -> State:
    """What ``step`` starts from."""
    return {
        "run": run,
        "step": step,
        "model": built.model.state_dict(),
        "optimizer": built.optimizer.state_dict(),
        "loss_scale": built.loss_scale.state_dict(),
    }


def start(built: Built) -> State:
    """What step 0 started from, drawn again from the seed."""
    model = model_of(built.config, built.model.embed.wte.shape[0])
    fresh = built._replace(
        model=model,
        optimizer=optimizer_of(built.config, model),
        loss_scale=LossScale(built.config.loss_scale, built.device),
    )
    return pack(fresh, 0, "")


def unpack(built: Built, state: State) -> int:
    """Put a state into a model and its optimizer; returns the step that it starts."""
    built.model.load_state_dict(state["model"])
    built.optimizer.load_state_dict(state["optimizer"])
    built.loss_scale.load_state_dict(state["loss_scale"])
    step: int = state["step"]
    return step


def save(state: State, path: Path) -> None:
    """Write a state whole."""
    with atomic.writing(path) as file:
        torch.save(state, file)


def load(path: Path, run: str, device: torch.device | str) -> State | None:
    """A run's state; None where there is none or it is another run's or a torn one."""
    try:
        state: State = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        return None
    except Exception:  # whatever torch says of a damaged file: then the run starts anew
        return None
    return state if isinstance(state, dict) and state.get("run") == run else None
