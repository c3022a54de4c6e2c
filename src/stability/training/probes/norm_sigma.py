"""Mean over tokens of 1/sigma of every norm: the factor by which it shrinks a gradient.

sigma^2 is the variance or mean square that the norm divides by, eps included; of BatchNorm it is
one per feature, and the mean goes over features. Norms that take no moment have no row.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from stability.parts.norms import Affine
from stability.training.probes._context import NORMS, Item, ProbeContext, Row

ITEMS = (Item(NORMS, "`norm`, `norm.out`", "mean over tokens of 1/sigma"),)


def standardised(norm: Affine, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
    """(xhat, sigma): what the norm makes of its input before gamma, and what it divides by."""
    deviation = x_BTD - x_BTD.mean(norm.over, keepdim=True) if norm.centred else x_BTD
    sigma = (deviation.square().mean(norm.over, keepdim=True) + norm.eps).sqrt()
    return deviation / sigma, sigma


def has_sigma(norm: nn.Module) -> bool:
    """Whether the norm divides by a moment of its input."""
    return isinstance(norm, Affine) and len(norm.over) > 0


def rows(context: ProbeContext) -> Iterator[Row]:
    norms = context.norms()
    for key, x_BTD in context.shared_pass.norms.items():
        if has_sigma(norm := norms[key]):
            sigma = standardised(norm, x_BTD.double())[1]  # type: ignore[arg-type]
            yield *key, float(sigma.reciprocal().mean())
