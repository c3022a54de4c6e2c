"""rms(output) / rms(input) of every linear layer (not of a tied head), bias included.

At init it is std * sqrt(fan_in), where the weights know nothing of the input.
"""

from collections.abc import Iterator

from stability.training.probes._look import Look, Row, square


def rows(look: Look) -> Iterator[Row]:
    for key, flow in look.seen.linears.items():
        yield *key, float((square(flow.y_BTO).mean() / square(flow.x_BTI).mean()).sqrt())
