"""State saved when a run diverges: the failing step, its weights and its batch."""

from dataclasses import dataclass
from typing import Any

import torch

from stability.config.knobs import Config
from stability.config.names import Key
from stability.model.build import Built
from stability.training import checkpoint
from stability.training.checkpoint import Checkpoint
from stability.training.passes import Batch, train_batch

FirstBad = dict[str, Any]
"""Where the first non-finite tensor lies: step, layer, sublayer, site, kind."""


def describe(found: FirstBad) -> str:
    """A non-finite tensor in words."""
    return f"{found['kind']} at {Key.of(found)}"


def loss_place(config: Config, step: int) -> FirstBad:
    """The place of what is not finite although every recorded tensor is: the loss."""
    place = {"layer": config.depth, "sublayer": "head", "site": "loss", "kind": "act"}
    return {"step": step, **place}


@dataclass(frozen=True)
class Failure:
    """What is saved of a diverged run to make its step again; shares no memory with the training.

    Attributes:
        step: the first that was not finite; after the last step, the number of steps.
        saved: what the step started from, on the CPU: the weights, the loss scale and, unless it
            was a validation, the batch; not the optimizer's state.
        weights_broken: a weight was not finite before the step.
        seen: the first non-finite tensor among those that were recorded as it happened.
        validating: it was the validation after the last step that was not finite.
    """

    step: int
    saved: Checkpoint
    weights_broken: bool
    seen: FirstBad | None
    validating: bool

    @classmethod
    def of(
        cls,
        built: Built,
        step: int,
        run: str,
        loss_scale: float | None = None,
        seen: FirstBad | None = None,
    ) -> "Failure":
        """The failure of a training whose weights are still what the step started from.

        Args:
            built: what is trained.
            step: the failing one.
            run: hash.
            loss_scale: of the step, which by now may be halved; None after the last step.
            seen: first non-finite tensor that was recorded.
        """
        validating = loss_scale is None
        saved = starting_point(built, step, run, None if validating else train_batch(built, step))
        if loss_scale is not None:
            saved["loss_scale"]["scale"].fill_(loss_scale)
        broken = not all(bool(torch.isfinite(p).all()) for p in built.model.parameters())
        return cls(step, saved, broken, seen, validating)


def starting_point(built: Built, step: int, run: str, batch: Batch | None = None) -> Checkpoint:
    """What a step starts from except the optimizer's state, copied to the CPU; and its batch."""
    state = checkpoint.pack(built, step, run)
    del state["optimizer"]
    for part in ("model", "loss_scale"):
        state[part] = {name: value.to("cpu", copy=True) for name, value in state[part].items()}
    return state if batch is None else with_batch(state, batch)


def with_batch(saved: Checkpoint, batch: Batch) -> Checkpoint:
    """A starting point with the batch that the pass reads."""
    return {**saved, "x": batch.x_BT.cpu(), "y": batch.y_BT.cpu()}
