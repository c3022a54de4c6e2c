"""Mean cosine between different tokens of one sequence, of the stream and of its gradient.

With unit vectors u_t the mean over pairs is (|sum u_t|^2 - T) / (T (T - 1)). Tokens whose vector is
zero (no gradient reaches padding) have no direction and are left out.
"""

from collections.abc import Iterator

from torch import Tensor

from stability.training.probes._context import STREAMS, Item, ProbeContext, Row

ITEMS = (
    Item(
        STREAMS,
        "`act`, `grad`",
        "mean cosine between tokens of a sequence, of x or its gradient",
    ),
)


def rows(context: ProbeContext) -> Iterator[Row]:
    for (layer, sublayer), (x_BTD, grad_BTD) in context.shared_pass.streams.items():
        yield layer, sublayer, "act", mean_cosine(x_BTD)
        yield layer, sublayer, "grad", mean_cosine(grad_BTD)


def mean_cosine(x_BTD: Tensor) -> float:
    """Mean over sequences of the mean cosine over pairs of tokens; NaN without a pair."""
    x_BTD = x_BTD.double()
    x_BTD = x_BTD / x_BTD.abs().amax(-1, keepdim=True).clamp(min=1e-300)
    norm_BT1 = x_BTD.norm(dim=-1, keepdim=True)
    count_B = (norm_BT1[..., 0] > 0).sum(-1)
    unit_BTD = x_BTD / norm_BT1.masked_fill(norm_BT1 == 0, 1.0)
    pairs_B = unit_BTD.sum(1).square().sum(-1) - count_B
    return float((pairs_B / (count_B * (count_B - 1))).nanmean())
