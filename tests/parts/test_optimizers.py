"""What an update rule gives torch: which parameters decay, with which constants, in what order."""

import math

import pytest
import torch

from stability.config.instantiate import RefusedArgument
from stability.config.knobs import Train
from stability.config.names import Key
from stability.parts.optimizers import SGD, Adam, AdamW

MATRIX, VECTOR = torch.zeros(3, 2), torch.zeros(3)
WEIGHTS = {Key(0, "mlp", "mlp_in"): MATRIX, Key(0, "mlp", "mlp_in.bias"): VECTOR}
TRAIN = Train(lr=0.01, weight_decay=0.1)
RULES = {
    "sgd": SGD(),
    "adam": Adam([0.8, 0.9], 1e-6),
    "adamw": AdamW([0.8, 0.9], 1e-6, independent_weight_decay=False),
}


def decay_of(group):
    return group["weight_decay"]


@pytest.mark.parametrize("name", RULES)
def test_matrices_decay_and_vectors_do_not(name):
    (inner,) = RULES[name].make(WEIGHTS, TRAIN, fused=False)
    decays = {id(p): decay_of(group) for group in inner.param_groups for p in group["params"]}
    assert decays == {id(MATRIX): 0.1, id(VECTOR): 0.0}


@pytest.mark.parametrize(("kept", "decay"), [(MATRIX, 0.1), (VECTOR, 0.0)])
def test_a_model_of_matrices_or_of_vectors_alone_has_one_group(kept, decay):
    (group,) = SGD().groups({Key(0, "mlp", "w"): kept}, TRAIN)
    assert group["params"][0] is kept and decay_of(group) == decay


def test_adam_is_given_its_constants_in_their_order():
    for name in ("adam", "adamw"):
        (inner,) = RULES[name].make(WEIGHTS, TRAIN, fused=False)
        assert inner.defaults["betas"] == (0.8, 0.9)
        assert inner.defaults["eps"] == 1e-6
        assert inner.defaults["lr"] == 0.01
    assert type(RULES["adam"].make(WEIGHTS, TRAIN, False)[0]) is torch.optim.Adam
    assert type(RULES["adamw"].make(WEIGHTS, TRAIN, False)[0]) is torch.optim.AdamW


def test_an_independent_decay_is_what_weight_decay_says_at_the_peak():
    """Each step torch shrinks a weight by lr(t) * decay; at the peak that shall be weight_decay."""
    rule = AdamW([0.9, 0.99], 1e-8, independent_weight_decay=True)
    assert rule.weight_decay(TRAIN) == pytest.approx(0.1 / 0.01)
    assert rule.weight_decay(Train(lr=0.0, weight_decay=0.1)) == 0.0
    assert AdamW([0.9, 0.99], 1e-8, independent_weight_decay=False).weight_decay(TRAIN) == 0.1


@pytest.mark.parametrize("betas", [[0.9], [0.9, 1.0], [-0.1, 0.9], [0.9, 0.9, 0.9]])
def test_decay_rates_of_moments_are_two_numbers_below_1(betas):
    with pytest.raises(RefusedArgument, match=r"betas must be two numbers in \[0, 1\)"):
        Adam(betas, 1e-8)


def test_eps_is_not_negative():
    assert Adam([0.0, 0.0], 0.0).eps == 0.0
    with pytest.raises(RefusedArgument, match="eps must be >= 0"):
        Adam([0.9, 0.9], -1e-9)


def test_the_direction_of_adam_is_its_unbiased_moments_over_root_and_eps():
    """After three gradients 1, -2, 3 of one number, by hand."""
    betas, eps, m, v = (0.8, 0.9), 1e-3, 0.0, 0.0
    for gradient in (1.0, -2.0, 3.0):
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
    wanted = m / (1 - 0.8**3) / (math.sqrt(v / (1 - 0.9**3)) + eps)
    state = {"step": 3.0, "exp_avg": m, "exp_avg_sq": v}
    found = Adam([*betas], eps).direction({k: torch.tensor(x).double() for k, x in state.items()})
    assert float(found) == pytest.approx(wanted, rel=1e-6)
