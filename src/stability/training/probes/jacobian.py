"""Spectral norms of Jacobians along the residual stream, over all tokens at once.

- ``sublayer``: d x_post / d x_pre;
- ``branch``: the part of it that flows through the branch: the equation's Jacobian minus that of
  the same equation with the branch's output held fixed. J_f J_N in Pre-LN, J_N J_f in Post-LN,
  J_N' J_f J_N in Peri-LN;
- ``tail``: d x_L / d x_l, with x_l the stream that enters block l, for at most `TAILS` evenly
  spaced blocks, since the cost of all grows as L^2. x_L is before the final norm.

Taken jointly over the first `SEQUENCES` sequences of the step's batch, the first `TOKENS` tokens of
each: the largest over these sequences, where no BatchNorm ties them. Seed, tolerance and number of
rounds stand in `_spectral`.
"""

from collections.abc import Iterator

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from stability.config.token_positions import positions
from stability.model.gpt import Sublayer
from stability.training.probes._context import BLOCKS, SUBLAYERS, Item, ProbeContext, Row
from stability.training.probes._spectral import spectral_norm

ITEMS = (
    Item(SUBLAYERS, "`sublayer`", "spectral norm of d x_post / d x_pre"),
    Item(
        SUBLAYERS,
        "`branch`",
        "of what flows through the branch alone: J_f J_N in Pre-LN, J_N J_f in Post-LN",
    ),
    Item(
        BLOCKS, "`tail`", "of d x_L / d x_l, x_l entering block l; at most 9 evenly spaced blocks"
    ),
)

SEQUENCES = 2
TOKENS = 128
TAILS = 9


def rows(context: ProbeContext) -> Iterator[Row]:
    context.model.requires_grad_(False)
    with sdpa_kernel(SDPBackend.MATH):
        x_BTD = context.model.embed(context.x_BT[:SEQUENCES, :TOKENS])
        for layer, name, sub in context.places():
            x_BTD = x_BTD.detach().requires_grad_()
            yield layer, name, "branch", spectral_norm(through_branch(sub, x_BTD), x_BTD)
            y_BTD = sub(x_BTD)
            yield layer, name, "sublayer", spectral_norm(y_BTD, x_BTD)
            x_BTD = y_BTD
        yield from tails(context)


def through_branch(sub: Sublayer, x_BTD: Tensor) -> Tensor:
    """Zero, with the derivative that the sublayer has through its branch."""
    held_BTD = sub.update(x_BTD, lambda x: sub.branch(x).detach())
    return sub(x_BTD) - held_BTD


def tails(context: ProbeContext) -> Iterator[Row]:
    """Rows ``tail``: every product runs through the one graph of the whole stack."""
    depth = context.model.depth
    x_BTD = context.model.embed(context.x_BT[:SEQUENCES, :TOKENS]).requires_grad_()
    entering = []
    for block in context.model.blocks:
        entering.append(x_BTD)
        x_BTD = block(x_BTD)
    for layer in positions(depth, TAILS):
        yield layer, "block", "tail", spectral_norm(x_BTD, entering[layer])
