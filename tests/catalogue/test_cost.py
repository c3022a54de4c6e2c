"""Parameters and operations of a model against counts by hand."""

import pytest
import torch
from torch.nn import functional as F

from stability.catalogue.cost import Cost, Operations, cost
from stability.parts.norms import LayerNorm, RMSNorm
from tiny import make_config

L, D, H, T, V = 3, 16, 2, 8, 11
M = 4 * D
SIZE = {"depth": L, "model.width": D, "model.heads": H, "model.context": T, "model.vocab": V}


def cost_of(**choices):
    return cost(make_config(SIZE, **choices))


def operations(f):
    with torch.device("meta"), torch.no_grad(), Operations() as counted:
        f()
    return counted.count


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda: torch.zeros(5, 7) @ torch.zeros(7, 3), 2 * 5 * 7 * 3),
        (lambda: F.linear(torch.zeros(2, 5, 7), torch.zeros(3, 7)), 2 * 10 * 7 * 3),
        (lambda: torch.ones(4, 1) + torch.ones(1, 6), 24),
        (lambda: torch.ones(4, 6).sum(), 24),
        (lambda: F.gelu(torch.ones(4, 6)), 24),
        (lambda: torch.softmax(torch.ones(4, 6), -1), 5 * 24),  # max, minus, exp, sum, divide
        (lambda: torch.ones(4, 6).t().contiguous().view(24).double(), 0),
    ],
)
def test_operations_are_counted_as_a_hand_counts_them(f, expected):
    ones = operations(lambda: torch.ones(1))  # what the inputs take
    assert ones == 0
    assert operations(f) == expected


# x^2, mean, times, gamma, beta: five an entry, and for each token + eps and the inverse root.
# LayerNorm: mean and variance in one, minus, times, gamma, beta.
@pytest.mark.parametrize("norm", [RMSNorm, LayerNorm])
def test_a_norm_takes_five_operations_an_entry_and_two_a_token(norm):
    with torch.device("meta"):
        made = norm(D, bias=True, eps=1e-5)
    assert operations(lambda: made(torch.empty(2, T, D))) == 2 * T * (5 * D + 2)


def test_a_linear_stack_costs_its_matrices_and_its_sums():
    found = cost_of(norm="none", **{"model.sublayers": "linear", "model.bias": False})
    stack = L * (2 * D * D + D)
    embedding, head = D, 2 * D * V
    assert found == Cost(L * D * D + (V + T) * D, embedding + stack + head)


def test_a_placement_adds_its_norms_and_its_sums():
    none, plain, pre, peri = (cost_of(norm=n) for n in ("none", "plain", "pre", "peri"))
    assert none.minus(plain) == Cost(0, 2 * L * D)
    assert pre.minus(none) == Cost((2 * L + 1) * 2 * D, (2 * L + 1) * (5 * D + 2))
    assert peri.minus(pre) == Cost(2 * L * 2 * D, 2 * L * (5 * D + 2))


def test_a_gate_adds_a_matrix_and_a_product():
    gated = cost_of(activation="swiglu").minus(cost_of(activation="gelu"))
    assert gated == Cost(L * (D * M + M), L * (2 * D * M + M))


def test_attention_counts_all_logits():
    longer = {**SIZE, "model.context": 2 * T}
    short, long = (cost(make_config(s, norm="none", activation="identity")) for s in (SIZE, longer))
    products = L * 2 * (2 * T * D)  # logits and values, 2 T D each
    per_logit = (long.minus(short).flops - products) / (L * H * T)
    # softmax five and the mask one; up to three that guard rows without an entry, and the making
    # of the mask, four for all heads together
    assert 6 <= per_logit <= 9 + 4 / H


def test_counting_neither_needs_memory_nor_depends_on_kernel_or_dropout():
    huge = cost_of(**{"model.width": 2**15, "model.heads": 2, "depth": 100})
    assert huge.parameters > 10**12
    fused, math, dropped = (
        cost_of(**changes) for changes in ({}, {"model.attention": "math"}, {"model.dropout": 0.5})
    )
    assert fused == math == dropped
