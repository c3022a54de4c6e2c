"""Placements that carry several streams: the state of the equation is a tuple of them.

A class names its streams, takes and returns a tuple, and says in ``end`` what the head reads. Every
stream begins as the embedding, unless ``begin`` says otherwise.
"""

from typing import Any

from stability.parts.placements import Fn, Operand, Placement


class ResiDual(Placement):
    """x <- N(x + f(x)), r <- r + f(x); the head reads x + N(r).

    The stream x is that of Post-LN, and r the one that Pre-LN has, with the same branches.
    """

    source = "arXiv:2304.14802"
    reported = "IWSLT14, WMT14 and OPUS-100: better translations than Pre-LN's and Post-LN's"

    final_norm = True
    streams = ("x", "r")

    def __call__(self, state: Operand, f: Fn, norm: Any) -> Operand:
        x, r = state
        branch = f(x)
        return norm(x + branch), r + branch

    def end(self, state: Operand, norm: Any) -> Operand:
        x, r = state
        return x + norm(r)


class SiameseNorm(Placement):
    """x <- N(x), z = f(N_inner(x + N_y(y))), x <- x + z / sqrt(2 l), y <- y + z, with l = 1 .. L.

    The head reads N(N_x(x) + N_y(y)). The constant is that of the authors' code for DeiT.
    """

    source = "arXiv:2602.08064"
    reported = "ImageNet, DeiT-S: accuracy 81.3 against 79.8"

    final_norm = True
    streams = ("x", "y")

    def __init__(self, depth: int, layer: int, sublayer: str) -> None:
        super().__init__(depth, layer, sublayer)
        self.scale = (2 * (layer + 1)) ** -0.5

    def __call__(self, state: Operand, f: Fn, norm: Any) -> Operand:
        x, y = state
        x = norm(x)
        z = f(norm.inner(x + norm.y(y)))
        return x + self.scale * z, y + z

    def end(self, state: Operand, norm: Any) -> Operand:
        x, y = state
        return norm(norm.x(x) + norm.y(y))
