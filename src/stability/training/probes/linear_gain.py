"""rms(output) / rms(input) of every linear layer (not of a tied head), bias included.

At init it is std * sqrt(fan_in), for weights that are independent of the input.
"""

from collections.abc import Iterator

from stability.training.probes._context import LINEARS, Item, ProbeContext, Row, square

ITEMS = (Item(LINEARS, "weight name (`q`, `mlp_in`, ...)", "rms(output) / rms(input)"),)


def rows(context: ProbeContext) -> Iterator[Row]:
    for key, flow in context.shared_pass.linears.items():
        yield *key, float((square(flow.y_BTO).mean() / square(flow.x_BTI).mean()).sqrt())
