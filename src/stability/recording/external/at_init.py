"""Leaves what the theory needs of a recorded model: the GPT that it equals, its first tokens."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from stability.recording.external.equal_gpt import Differs, equal_gpt
from stability.recording.external.guard import Guard
from stability.recording.external.module_hooks import ModuleHooks
from stability.recording.external.sites import Sites
from stability.results import schema
from stability.results.atomic import write_text

LONGEST = 1024
"""Tokens of a sequence beyond which its theory would take long."""

PLAIN = ("input_ids", "labels", "attention_mask", "use_cache", "return_dict")
"""Arguments of a forward pass that the theory can follow: of the mask only ones."""


class AtInit:
    """Writes `schema.THEORY_FILE` and `schema.BATCH_FILE` at the first pass, if that can be done.

    Args:
        model: the user's.
        sites: of the model.
        folder: of the run.
        guard: runs the hook.
    """

    def __init__(self, model: nn.Module, sites: Sites, folder: Path, guard: Guard) -> None:
        self._sites, self._folder = sites, folder
        self._hooks = ModuleHooks()
        if sites.family:
            hook = torch._disable_dynamo(guard(self._after_model))  # type: ignore[attr-defined]
            self._hooks.after(model, hook)

    def remove(self) -> None:
        """Remove the hook, if it is still there."""
        self._hooks.remove()

    def _after_model(self, model: nn.Module, args: Any, kwargs: Any, _: Any) -> None:
        if not torch.is_grad_enabled():
            return
        self._hooks.remove()
        tokens = _tokens(args, kwargs)
        if tokens is None:
            return
        try:
            config = equal_gpt(model, self._sites)
        except Differs:
            return
        x = tokens.cpu().numpy()
        np.savez(self._folder / schema.BATCH_FILE, x=x, y=np.full_like(x, -1))
        text = yaml.safe_dump(config.plain(), sort_keys=False)
        write_text(self._folder / schema.THEORY_FILE, text)


def _tokens(args: Any, kwargs: dict[str, Any]) -> Tensor | None:
    """The tokens [sequence, position] that a pass read, if it read nothing else."""
    given = {name: value for name, value in kwargs.items() if value is not None}
    tokens = given.get("input_ids", args[0] if args else None)
    mask = given.get("attention_mask")
    if (
        set(given) - set(PLAIN)
        or len(args) > 2
        or (mask is not None and not bool((mask == 1).all()))
    ):
        return None
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.is_floating_point():
        return None
    return tokens if tokens.shape[1] <= LONGEST else None
