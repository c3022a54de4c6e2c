"""|F(theta_i) - F(theta_0)|: how far training has moved the output. Source: arXiv:2203.00555.

F is what the head reads (after the final norm where there is one), on the first validation batch;
theta_0 is drawn again from the seed, so that a resumed run needs no memory of it. The value is the
root over tokens of the mean squared length of the change.
"""

from collections.abc import Iterator

from stability.training.probes._context import OUTPUT, Item, ProbeContext, Row, square

ITEMS = (Item(OUTPUT, "`change`", "|F(theta_i) - F(theta_0)|"),)


def rows(context: ProbeContext) -> Iterator[Row]:
    moved_BTD = context.output() - context.initial_output
    yield context.model.depth, "head", "change", float(square(moved_BTD).sum(-1).mean().sqrt())
