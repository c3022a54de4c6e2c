"""Whether a weight's gradient is sum_t delta_t x_t^T, in every linear layer (not in a tied head).

x is what the layer reads, N(x) for q, k, v and mlp_in in Pre-LN; delta the gradient of what it
returns. The value is |sum delta x^T - dL/dW| / |dL/dW| in Frobenius norms; the sum is made in fp64.
"""

from collections.abc import Iterator

from torch import Tensor
from torch.linalg import vector_norm

from stability.training.probes._context import LINEARS, Item, LinearPass, ProbeContext, Row

ITEMS = (
    Item(
        LINEARS,
        "weight name (`q`, `mlp_in`, ...)",
        "relative Frobenius error of sum_t delta_t x_t^T",
    ),
)


def rows(context: ProbeContext) -> Iterator[Row]:
    for key, flow in context.shared_pass.linears.items():
        yield *key, error(flow)


def error(flow: LinearPass) -> float:
    """Relative Frobenius error; 0 where there is no gradient at all."""
    made_OI = outer(flow.delta_BTO, flow.x_BTI)
    size = float(vector_norm(flow.weight_grad_OI.double()))
    missed = float(vector_norm(made_OI - flow.weight_grad_OI.double()))
    return missed / size if size or missed else 0.0


def outer(delta_BTO: Tensor, x_BTI: Tensor) -> Tensor:
    """Sum over tokens of delta x^T, in fp64."""
    return delta_BTO.double().flatten(0, -2).T @ x_BTI.double().flatten(0, -2)
