"""Sites of a model whose blocks, and the parts of each, are known."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from stability.config.names import BLOCK, FINAL_NORM, STACKS, Key
from stability.recording.external.passes import Site
from stability.recording.external.sites import Sites

Parts = Mapping[str, tuple[str, ...]]
"""Sublayer -> dotted names of its modules in a block, in the order in which they run.

What the first reads is what the sublayer reads; what the last returns is what it returns."""


class Stack(NamedTuple):
    """A list of blocks."""

    blocks: Sequence[tuple[str, Parts]]
    """For each the name in the list, and its parts."""
    final_norm: str | None = None
    """Dotted name in the model of the norm after the last block."""


def sites_of(model: nn.Module, stacks: Mapping[str, Stack]) -> Sites:
    """The sites of the blocks, their attention, MLPs and norms.

    Layers are counted through all stacks. If the model has encoder and decoder stacks, each counts
    its own, and its name comes first: ``encoder``, ``encoder.attn``, ``decoder``. A block gives
    ``resid_pre`` and ``resid_post``, all else ``branch_in`` and ``branch_out``, attention also
    ``scores`` and ``attn_rows``. The last norm has the number of blocks as its layer.

    Args:
        model: the whole model.
        stacks: by dotted name in the model.
    """
    found = Sites({}, {}, {}, {})
    both = all(any(side in name.split(".") for name in stacks) for side in STACKS)
    counts = dict[str, int]()
    for name, stack in stacks.items():
        side = next((s for s in STACKS if both and s in name.split(".")), "")
        for child, parts in stack.blocks:
            layer = counts.get(side, 0)
            counts[side] = layer + 1
            block = f"{name}.{child}" if name else child
            _add(found, model, (layer, side or BLOCK), block, (block,), BLOCK_SITES)
            for sublayer, modules in parts.items():
                inside = [f"{block}.{m}" for m in modules]
                place = layer, _under(side, sublayer)
                _add(found, model, place, block, inside, BRANCH_SITES)
                if sublayer.partition(".")[0] in ATTENTION:
                    found.attention[model.get_submodule(inside[0])] = place
        if stack.final_norm:
            place = counts.get(side, 0), _under(side, FINAL_NORM)
            _add(found, model, place, "", (stack.final_norm,), BRANCH_SITES)
    return found._replace(stacks=len(stacks))


BLOCK_SITES, BRANCH_SITES = ("resid_pre", "resid_post"), ("branch_in", "branch_out")
ATTENTION = ("attn", "cross_attn")
"""Sublayers that compare queries with keys."""


def _under(side: str, sublayer: str) -> str:
    return f"{side}.{sublayer}" if side else sublayer


def _add(
    found: Sites,
    model: nn.Module,
    place: tuple[int, str],
    block: str,
    modules: Iterable[str],
    sites: tuple[str, str],
) -> None:
    """Add what a sublayer reads and returns, and where the parameters of its modules belong."""
    first, *_, last = [*modules] * 2
    reads, returns = (Key(*place, site) for site in sites)
    found.of.setdefault(model.get_submodule(first), []).append(Site(reads, reads=True))
    found.of.setdefault(model.get_submodule(last), []).append(Site(returns))
    owners = [n for n in modules if any(True for _ in model.get_submodule(n).parameters())]
    apart = [n for n in owners if not any(n.startswith(f"{o}.") for o in owners)]
    for name in apart or [first]:
        found.places[name] = place
        if len(apart) > 1:
            found.roots[name] = block
