"""|F(W) - F(W + noise)|^2: how much the output depends on the weights. Source: arXiv:2004.08249.

Every weight matrix of every sublayer gets independent Gaussian noise whose std is `RELATIVE` times
the matrix's rms. F is what the head reads (after the final norm where there is one), on the first
validation batch. The value is the squared length of the change of a token, mean over tokens and
over `DRAWS` draws of the noise, which are the same in every run of one shape.
"""

from collections.abc import Iterator

import torch

from stability.training.probes._context import OUTPUT, Item, ProbeContext, Row, square

ITEMS = (Item(OUTPUT, "`change`", "|F(W) - F(W + noise)|^2"),)

RELATIVE = 0.01
DRAWS = 4


def rows(context: ProbeContext) -> Iterator[Row]:
    before_BTD = context.output()
    changes = []
    for seed in range(DRAWS):
        context.load_weights()
        perturb(context, seed)
        changes.append(float(square(context.output() - before_BTD).sum(-1).mean()))
    yield context.model.depth, "head", "change", sum(changes) / DRAWS


@torch.no_grad()
def perturb(context: ProbeContext, seed: int) -> None:
    """Add the noise of one draw to every weight matrix between the embedding and the head."""
    generator = torch.Generator(context.built.device).manual_seed(seed)
    for key, linear in context.linears().items():
        if key.sublayer != "head":
            weight = linear.weight
            noise = torch.randn(
                weight.shape, generator=generator, dtype=weight.dtype, device=weight.device
            )
            weight += noise * (RELATIVE * square(weight).mean().sqrt()).to(weight.dtype)
