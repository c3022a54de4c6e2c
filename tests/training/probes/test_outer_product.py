"""Weight gradients against sums of outer products, token by token."""

import pytest
import torch

from probed import Probed, by_layer
from stability.model.gpt import draw
from stability.training.probes._context import LinearPass
from stability.training.probes.outer_product import error


@pytest.mark.parametrize("tied", [True, False])
def test_weight_gradients_are_outer_products(tied):
    changes = {"model.tie_embeddings": tied, "activation": "swiglu"}
    probed = Probed(["outer_product"], changes)
    slow = by_layer(probed)
    assert set(probed.values) == set(slow)
    assert ((2, "head", "head") in slow) is not tied
    for key, (x, _, delta, grad) in slow.items():
        total = torch.zeros_like(grad, dtype=torch.float64)
        for b in range(x.shape[0]):
            for t in range(x.shape[1]):
                total += torch.outer(delta[b, t].double(), x[b, t].double())
        slow_error = float((total - grad).norm() / grad.norm())
        assert (
            probed.values[key] == pytest.approx(slow_error, abs=1e-6) and probed.values[key] < 1e-5
        )


def test_a_gradient_that_is_no_outer_product_shows():
    x, delta = draw(0, "x", torch.Size((2, 3, 4))), draw(0, "d", torch.Size((2, 3, 5)))
    right = torch.einsum("bto,bti->oi", delta, x)
    flow = LinearPass(x, delta, delta, right)
    assert error(flow) < 1e-15
    assert error(flow._replace(weight_grad_OI=1.1 * right)) == pytest.approx(0.1 / 1.1)
    zero = torch.zeros_like(right)
    assert error(flow._replace(delta_BTO=0 * delta, weight_grad_OI=zero)) == 0
