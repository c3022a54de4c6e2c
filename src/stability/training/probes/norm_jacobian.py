"""The closed form of a norm's Jacobian against autograd, at the norm's own inputs.

J = (I - 1 1^T / n - xhat xhat^T / n) / sigma over the n entries of a group that shares a sigma (a
token's features; BatchNorm: a feature's tokens); RMSNorm lacks the term of the mean. J is
symmetric, so v^T J = J v, and its spectral norm is 1/sigma (n > 2). gamma is 1 and beta 0 here,
everything is fp64 and no J is built:

- ``error``: largest |J v - autograd's v^T J| over all entries, for `DRAWS` standard normal v;
- ``spectral``: by `ROUNDS` rounds of power iteration in every group at once, mean over groups;
- ``inverse_sigma``: mean over groups of 1/sigma.
"""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from stability.parts.norms import Affine
from stability.training.probes._context import NORMS, Item, ProbeContext, Row
from stability.training.probes.norm_sigma import has_sigma, standardised

ITEMS = (
    Item(NORMS, "`error`", "largest |closed form - autograd|, in fp64"),
    Item(
        NORMS,
        "`spectral`, `inverse_sigma`",
        "norm of J, and 1/sigma; means over tokens; gamma 1, beta 0",
    ),
    Item(NORMS, "`out.error`, ...", "the same of a second norm"),
)

DRAWS = 3
ROUNDS = 3
"""All singular values but one or two are equal: the first round already ends the search."""
SEED = 0


def closed_form(norm: Affine, x_BTD: Tensor, v_BTD: Tensor) -> Tensor:
    """J v of the norm at x."""
    xhat, sigma = standardised(norm, x_BTD)
    along = xhat * (xhat * v_BTD).mean(norm.over, keepdim=True)
    mean = v_BTD.mean(norm.over, keepdim=True) if norm.centred else 0.0
    return (v_BTD - mean - along) / sigma


def by_autograd(norm: Affine, x_BTD: Tensor) -> Callable[[Tensor], Tensor]:
    """The map v -> v^T J of the norm at x, with gamma 1 and beta 0."""
    bare = copy.deepcopy(norm).double()
    torch.nn.init.ones_(bare.weight)
    if bare.bias is not None:
        torch.nn.init.zeros_(bare.bias)
    x_BTD = x_BTD.detach().requires_grad_()
    y_BTD = bare(x_BTD)
    return lambda v: torch.autograd.grad(y_BTD, x_BTD, v, retain_graph=True)[0]


def rows(context: ProbeContext) -> Iterator[Row]:
    norms = context.norms()
    for (layer, sublayer, name), x in context.shared_pass.norms.items():
        norm = norms[layer, sublayer, name]  # type: ignore[index]
        if not has_sigma(norm):
            continue
        which = name.removeprefix("norm").removeprefix(".")
        for item, value in measure(norm, x.double()).items():  # type: ignore[arg-type]
            yield layer, sublayer, f"{which}.{item}" if which else item, value


def measure(norm: Affine, x_BTD: Tensor) -> dict[str, float]:
    """The three items for one norm at its input."""
    generator = torch.Generator(x_BTD.device).manual_seed(SEED)
    vjp, errors = by_autograd(norm, x_BTD), []
    for _ in range(DRAWS):
        v = torch.randn(x_BTD.shape, generator=generator, dtype=x_BTD.dtype, device=x_BTD.device)
        errors.append((vjp(v) - closed_form(norm, x_BTD, v)).abs().max())
    for _ in range(ROUNDS):
        v = v / _length(v, norm)
        v = vjp(v)
    sigma = standardised(norm, x_BTD)[1]
    return {
        "error": float(torch.stack(errors).max()),
        "spectral": float(_length(v, norm).mean()),
        "inverse_sigma": float(sigma.reciprocal().mean()),
    }


def _length(v: Tensor, norm: Affine) -> Tensor:
    return torch.linalg.vector_norm(v, dim=norm.over, keepdim=True)
