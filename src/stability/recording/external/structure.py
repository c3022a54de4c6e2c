"""Sites of a model found by its structure: its blocks, and the parts inside them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from torch import nn

from stability.recording.external.blocks import Stack, sites_of
from stability.recording.external.sites import Sites
from stability.recording.external.tensors import is_convolution

AUTO = "auto"
"""The value of ``sites`` that asks for a search."""

BRANCHES = {
    "attn": ("attention", "attn"),
    "mlp": ("mlp", "feedforward", "ffn", "denseact", "densegated"),
}
"""Sublayer -> parts of the names of classes that compute it."""


def found_blocks(model: nn.Module, known: Mapping[str, Stack] = MappingProxyType({})) -> Sites:
    """The blocks of the innermost stacks, with their attention, MLP and norms.

    A stack is a ModuleList or Sequential whose children share a class and hold attention or an MLP;
    if there is none, one whose children hold convolutions. See `sites_of`. Of several attentions,
    MLPs or norms in a block each is called by its own name too: ``norm.input_norm``. Blocks of
    which the attention or the MLP is not one module are named in ``left_out``.

    Args:
        model: the whole model.
        known: stacks that are described already, by dotted name.

    Raises:
        ValueError: the model has no such stack.
    """
    lists = {n: m for n, m in _lists(model).items() if not _is_inside(n, known)}
    holding = [n for n, m in lists.items() if n in known or _holds(m, lambda x: bool(_sublayer(x)))]
    of_images = not holding
    holding = holding or [n for n, m in lists.items() if _holds(m, is_convolution)]
    inner = [n for n in holding if not any(_is_inside(other, [n]) for other in holding)]
    if not inner:
        raise ValueError(
            f"sites={AUTO}: found no stack of blocks with attention, an MLP or convolutions "
            f"(looked at {', '.join(lists) or 'no ModuleList or Sequential'}); give a pattern"
        )
    stacks = {name: known.get(name) or _described(lists[name]) for name in inner}
    left_out = [
        note
        for name, stack in stacks.items()
        if name not in known and not of_images
        for note in _not_found(lists[name], stack)
    ]
    return sites_of(model, stacks)._replace(left_out=tuple(dict.fromkeys(left_out)))


def _lists(model: nn.Module) -> dict[str, nn.Module]:
    """Lists of modules of one class, by dotted name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        and len({type(child) for child in module.children()}) == 1
    }


def _holds(blocks: nn.Module, is_part: Callable[[nn.Module], bool]) -> bool:
    """Whether every module of a list has such a module inside."""
    return all(any(m is not c and is_part(m) for m in c.modules()) for c in blocks.children())


def _described(blocks: nn.Module) -> Stack:
    return Stack([(name, dict(_parts(block))) for name, block in blocks.named_children()])


def _not_found(blocks: nn.Module, stack: Stack) -> Iterator[str]:
    """What to say of blocks whose attention or MLP is not one module."""
    for name, parts in stack.blocks:
        if missing := [kind for kind in BRANCHES if not _has(parts, kind)]:
            block = type(blocks.get_submodule(name)).__name__
            what = " and the ".join(missing)
            yield (
                f"sites={AUTO}: the {what} of {block} is no module of its own that could be found: "
                "what it reads and returns is not recorded"
            )


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm, by the name of its class."""
    return "norm" in type(module).__name__.lower() and not any(True for _ in module.children())


def _has(sublayers: Iterable[str], kind: str) -> bool:
    return any(name.partition(".")[0] == kind for name in sublayers)


def _sublayer(module: nn.Module) -> str | None:
    """Which branch a module computes, by the name of its class."""
    name = type(module).__name__.lower()
    return next((s for s, parts in BRANCHES.items() if any(p in name for p in parts)), None)


def _parts(block: nn.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Sublayers of a block, and the dotted name of the module of each.

    A module with a norm inside adds the residual itself, often before the norm: then the module
    that it wraps is the branch, unless other weights lie beside that one.
    """
    inside = {n: s for n, m in block.named_modules() if n and (s := _sublayer(m))}
    whole = [n for n in inside if _is_whole(block, n)]
    outer = [n for n in whole if not _is_inside(n, whole)]
    found = {n: inside[n] for n in outer}
    found |= {
        n: "norm"
        for n, m in block.named_modules()
        if _is_on_stream(n, m) and not _is_inside(n, outer)
    }
    if "mlp" not in found.values() and (mlp := _unnamed_mlp(block, found)):
        found[mlp] = "mlp"
    kinds = list(found.values())
    for name, kind in found.items():
        yield kind if kinds.count(kind) == 1 else f"{kind}.{name.replace('.', '_')}", (name,)


def _unnamed_mlp(block: nn.Module, found: Iterable[str]) -> str | None:
    """The one child of a block that holds two matrices or more and none of the parts found."""
    wanted = [
        name
        for name, child in block.named_children()
        if name not in found
        and not any(_is_inside(part, [name]) for part in found)
        and sum(p.ndim > 1 for p in child.parameters()) > 1
    ]
    return wanted[0] if len(wanted) == 1 else None


def _is_inside(name: str, others: Iterable[str]) -> bool:
    """Whether a module lies in one of others; the whole model is called by the empty name."""
    return any(name.startswith(f"{other}." if other else "") and name != other for other in others)


def _is_whole(block: nn.Module, name: str) -> bool:
    """Whether a module computes a whole branch: no norm inside, no other matrix beside it."""
    if any(_is_on_stream(n, m) for n, m in block.get_submodule(name).named_modules()):
        return False
    around, _, own = name.rpartition(".")
    if not around or not _sublayer(block.get_submodule(around)):
        return True
    beside = [m for n, m in block.get_submodule(around).named_children() if n != own]
    return not any(p.ndim > 1 for m in beside for p in m.parameters())


def _is_on_stream(name: str, module: nn.Module) -> bool:
    """Whether a module inside another is a norm, and not one of queries or keys."""
    return bool(name) and is_norm(module) and name.rpartition(".")[2][0] not in "qk"
