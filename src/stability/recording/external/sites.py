"""Which modules of a model are sites, and under which keys their tensors and parameters appear."""

import itertools
import re
from typing import NamedTuple

from torch import nn

from stability.config.names import BLOCK, EMBED_LAYER, FINAL_NORM, Key
from stability.recording.external.passes import Site

OUTSIDE = "outside"
"""Sublayer of parameters outside all sites."""


class Sites(NamedTuple):
    """The sites of a model."""

    of: dict[nn.Module, list[Site]]
    """By module: what is recorded there."""
    places: dict[str, tuple[int, str]]
    """Dotted name of a module -> layer and sublayer of the parameters inside."""
    roots: dict[str, str]
    """Names of modules whose parameters are called by their path below another, and that one's."""
    attention: dict[nn.Module, tuple[int, str]]
    """Modules that compare queries with keys -> layer and sublayer."""
    family: str = ""
    """Name of the preset that fits; empty for a pattern or a search."""
    stacks: int = 0
    """Number of lists of blocks, for a preset or a search."""
    left_out: tuple[str, ...] = ()
    """What a search of the structure saw and could not use, in words."""

    @property
    def depth(self) -> int:
        """Number of layers."""
        blocks = [n for n, sublayer in self.places.values() if not sublayer.endswith(FINAL_NORM)]
        return 1 + max(blocks)

    def key_of(self, parameter: str) -> Key:
        """The key of a parameter, by its dotted name: that of the innermost site around it."""
        name = parameter
        while "." in name:
            name = name.rpartition(".")[0]
            if name in self.places:
                root = self.roots.get(name, name)
                return Key(*self.places[name], parameter[len(root) + 1 :])
        return Key(EMBED_LAYER, OUTSIDE, parameter)


def matching(model: nn.Module, sites: str) -> Sites:
    """The modules whose dotted names end with a pattern.

    The pattern's first group is the layer's number; a second group, if any, names the sublayer
    (else ``block``). The site is called ``resid_post``: what the module returns.

    Raises:
        ValueError: the pattern matches no module, lacks the group, or matches two under one name.
    """
    try:
        pattern = re.compile(rf"(?:^|\.){sites}$")
    except re.error as error:
        raise ValueError(f"sites={sites}: is not a valid regular expression ({error})") from error
    if pattern.groups < 1:
        raise ValueError(f"sites={sites}: needs a group for the layer's number")
    found = Sites({}, {}, {}, {})
    keys = set()
    for name, module in model.named_modules():
        if match := pattern.search(name):
            number, *rest = match.groups()
            if not str(number).isdigit():
                raise ValueError(
                    f"sites={sites}: the first group matched {number!r}, which is not a number"
                )
            key = Key(int(number), rest[0] if rest and rest[0] else BLOCK, "resid_post")
            if key in keys:
                raise ValueError(f"sites={sites}: matches two modules as layer {number}, {key[1]}")
            keys.add(key)
            found.places[name] = key[:2]
            found.of[module] = [Site(key)]
    if not found.of:
        some = ", ".join(itertools.islice((name for name, _ in model.named_modules() if name), 8))
        raise ValueError(
            f"sites={sites}: matches none of the model's modules ({some}, ...); "
            "'auto' finds blocks by itself"
        )
    return found
