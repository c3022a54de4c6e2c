"""Sites of a model found by its structure: its blocks, and the attention and MLP inside them."""

from collections.abc import Iterable, Iterator

from torch import nn

from stability.config.names import BLOCK, Key
from stability.recording.external.passes import Site
from stability.recording.external.sites import Sites

AUTO = "auto"
"""The value of ``sites`` that asks for `found_blocks`."""

BRANCHES = {
    "attn": ("attention", "attn"),
    "mlp": ("mlp", "feedforward", "ffn", "denseact", "densegated"),
}
"""Sublayer -> parts of the names of classes that compute it."""


def found_blocks(model: nn.Module) -> Sites:
    """The blocks of the innermost stacks, with their attention and MLP.

    A stack is a ModuleList or Sequential whose children share a class and hold attention or an MLP.
    Layers are counted through all stacks. If the model has encoder and decoder stacks, each counts
    its own, and its name comes first: ``encoder``, ``encoder.attn``, ``decoder``. A block gives
    ``resid_pre`` and ``resid_post``, a branch ``branch_in`` and ``branch_out``. Blocks of which the
    attention or the MLP is not one module are named in ``left_out``.

    Raises:
        ValueError: the model has no such stack.
    """
    stacks = {name: module for name, module in model.named_modules() if _is_stack(module)}
    inner = [n for n in stacks if not any(other.startswith(f"{n}.") for other in stacks)]
    if not inner:
        lists = [
            n for n, m in model.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential)
        ]
        raise ValueError(
            f"sites={AUTO}: found no stack of blocks with attention or an MLP "
            f"(looked at {', '.join(lists) or 'no ModuleList or Sequential'}); give a pattern"
        )
    both = all(any(side in n.split(".") for n in inner) for side in ("encoder", "decoder"))
    found, counts, left_out = Sites({}, {}), dict[str, int](), dict[str, None]()
    for name in inner:
        side = next((s for s in ("encoder", "decoder") if both and s in name.split(".")), "")
        for child, block in stacks[name].named_children():
            layer = counts.get(side, 0)
            counts[side] = layer + 1
            _add(found, f"{name}.{child}", block, layer, side or BLOCK, ("resid_pre", "resid_post"))
            branches = dict(_branches(block))
            for inside, sublayer in branches.items():
                label = f"{side}.{sublayer}" if side else sublayer
                module = block.get_submodule(inside)
                _add(found, f"{name}.{child}.{inside}", module, layer, label, BRANCH_SITES)
            if missing := [kind for kind in BRANCHES if not _has(branches.values(), kind)]:
                what = " or ".join(missing)
                left_out[f"sites={AUTO}: found no {what} alone in {type(block).__name__}"] = None
    return found._replace(left_out=tuple(left_out))


def _has(sublayers: Iterable[str], kind: str) -> bool:
    return any(name.partition(".")[0] == kind for name in sublayers)


BRANCH_SITES = ("branch_in", "branch_out")


def _add(
    found: Sites, name: str, module: nn.Module, layer: int, sublayer: str, sites: tuple[str, str]
) -> None:
    """Add what a module reads and returns."""
    reads, returns = (Key(layer, sublayer, site) for site in sites)
    found.places[name] = (layer, sublayer)
    found.of[module] = [Site(reads, reads=True), Site(returns)]


def _sublayer(module: nn.Module) -> str | None:
    """Which branch a module computes, by the name of its class."""
    name = type(module).__name__.lower()
    return next((s for s, parts in BRANCHES.items() if any(p in name for p in parts)), None)


def _is_stack(module: nn.Module) -> bool:
    children = list(module.children())
    return (
        isinstance(module, nn.ModuleList | nn.Sequential)
        and len({type(child) for child in children}) == 1
        and all(any(m is not c and _sublayer(m) for m in c.modules()) for c in children)
    )


def _branches(block: nn.Module) -> Iterator[tuple[str, str]]:
    """Dotted names and sublayers of the attention and the MLP of a block.

    A module with a norm inside adds the residual itself, often before the norm: then the module
    that it wraps is the branch, unless other weights lie beside that one. Of several branches of
    one kind each is called by its own name too: ``attn.self_attn``.
    """
    inside = {n: s for n, m in block.named_modules() if n and (s := _sublayer(m))}
    whole = [n for n in inside if _is_whole(block, n)]
    outer = [n for n in whole if not any(n.startswith(f"{o}.") for o in whole)]
    kinds = [inside[n] for n in outer]
    for name, kind in zip(outer, kinds, strict=True):
        yield name, kind if kinds.count(kind) == 1 else f"{kind}.{name.rpartition('.')[2]}"


def _is_whole(block: nn.Module, name: str) -> bool:
    """Whether a module computes a whole branch: no norm inside, no other matrix beside it."""
    if _has_norm(block.get_submodule(name)):
        return False
    around, _, own = name.rpartition(".")
    if not around or not _sublayer(block.get_submodule(around)):
        return True
    beside = [m for n, m in block.get_submodule(around).named_children() if n != own]
    return not any(p.ndim > 1 for m in beside for p in m.parameters())


def _has_norm(module: nn.Module) -> bool:
    """Whether a norm lies inside that is not of queries or keys: often after a sum."""
    return any(
        "norm" in type(m).__name__.lower() and n.rpartition(".")[2][0] not in "qk"
        for n, m in module.named_modules()
        if n
    )
