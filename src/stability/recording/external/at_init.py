"""Leaves what the theory needs of a recorded model: the GPT that it equals, its first tokens."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from stability.config.names import BLOCK
from stability.recording.external.equal_gpt import FAMILIES, Differs, embedded, equal_gpt
from stability.recording.external.guard import Guard
from stability.recording.external.module_hooks import ModuleHooks, eager
from stability.recording.external.passes import is_transformed
from stability.recording.external.sites import Sites
from stability.recording.external.tensors import tensors_in
from stability.results import schema
from stability.results.atomic import write_text

PARTS = {BLOCK, "norm1", "attn", "norm2", "mlp"}
"""Sublayers of a block."""

ROUNDING = 1e-2
"""Relative difference that the rounding of bf16 can make."""

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
        self._first: dict[str, tuple[Tensor, Tensor]] = {}
        """What parts of the first block read and return, by sublayer."""
        if sites.family not in FAMILIES:
            return
        for name, (layer, sublayer) in sites.places.items():
            if layer == 0 and sublayer in PARTS:
                hook = guard(partial(self._after_part, sublayer))
                self._hooks.after(model.get_submodule(name), eager(hook))
        self._hooks.after(model, eager(guard(self._after_model)))

    def remove(self) -> None:
        """Remove the hook, if it is still there."""
        self._hooks.remove()

    def _after_part(self, name: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.is_grad_enabled() and not is_transformed():
            reads, returns = next(tensors_in((args, kwargs))), next(tensors_in(output))
            self._first[name] = reads.detach(), returns.detach()

    def _after_model(self, model: nn.Module, args: Any, kwargs: Any, _: Any) -> None:
        if not torch.is_grad_enabled() or is_transformed():
            return
        self._hooks.remove()
        tokens, first = _tokens(args, kwargs), self._first
        self._first = {}
        if tokens is None or set(first) != PARTS:
            return
        try:
            config = equal_gpt(model, self._sites)
        except Differs:
            return
        if not is_pre_norm(first, embedded(model, self._sites, tokens)):
            return
        x = tokens.cpu().numpy()
        np.savez(self._folder / schema.BATCH_FILE, x=x, y=np.full_like(x, -1))
        text = yaml.safe_dump(config.plain(), sort_keys=False)
        write_text(self._folder / schema.THEORY_FILE, text)


@torch.no_grad()
def is_pre_norm(first: Mapping[str, tuple[Tensor, Tensor]], x: Tensor) -> bool:
    """Whether the first block adds attention and MLP of normed streams to the embedding x.

    Args:
        first: by sublayer what it reads and what it returns.
        x: the embedding.
    """
    x_in, x_out = first[BLOCK]
    (norm1_in, norm1_out), (attn_in, attn_out) = first["norm1"], first["attn"]
    (norm2_in, norm2_out), (mlp_in, mlp_out) = first["norm2"], first["mlp"]
    pairs = [(x, x_in), (x_in, norm1_in), (norm1_out, attn_in), (norm2_out, mlp_in)]
    pairs += [(x_in + attn_out, norm2_in), (norm2_in + mlp_out, x_out)]
    return all(_is_same(a.float(), b.float()) for a, b in pairs)


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).norm() <= ROUNDING * b.norm())


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
