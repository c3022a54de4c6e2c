"""Every update rule against itself in fp64; what rounds, what is skipped and what decays."""

import math

import pytest
import torch
from torch import nn

from stability.config.knobs import Train
from stability.model.optim import Optimizer, learning_rate, total_norm
from tiny import make_config

FORMATS = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
FORMATS["fp16"] = torch.float16
RULES = [
    {"train.optimizer": "adamw"},
    {"train.optimizer": "adamw", "train.weight_decay": 0.5},
    {
        "train.optimizer": "adamw",
        "train.weight_decay": 0.01,
        "train.independent_weight_decay": True,
    },
    {"train.optimizer": "adam", "train.weight_decay": 0.5, "train.betas": [0.8, 0.99]},
    {"train.optimizer": "adam", "train.eps": 1e-3},
    {"train.optimizer": "sgd", "train.weight_decay": 0.5},
    {"train.optimizer": "sgd", "train.schedule": "cosine", "train.warmup_steps": 2},
]
GOOD, BAD = torch.tensor(0.0), torch.tensor(1.0)


def train_node(**changes) -> Train:
    return make_config({"train.lr": 0.01, "train.steps": 8, **changes}).train


class Rule:
    """The update of one parameter by its paper, in fp64: what it adds to the weight."""

    def __init__(self, train: Train) -> None:
        self.train, self.t, self.m, self.v = train, 0, 0.0, 0.0

    def __call__(self, w: torch.Tensor, g: torch.Tensor, step: int) -> torch.Tensor:
        train = self.train
        lr, decay = learning_rate(train, step), train.weight_decay if w.ndim >= 2 else 0.0
        if train.optimizer == "sgd":
            return -lr * (g + decay * w)
        if train.optimizer == "adam":
            g = g + decay * w
        (b1, b2), self.t = train.betas, self.t + 1
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g**2
        ratio = (self.m / (1 - b1**self.t)) / ((self.v / (1 - b2**self.t)) ** 0.5 + train.eps)
        if train.optimizer == "adam":
            return -lr * ratio
        if train.independent_weight_decay:
            return -lr * ratio - decay * lr / train.lr * w
        return -lr * (ratio + decay * w)


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 6), (6,), (3, 3))
    draws = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return [nn.Parameter(d.to(dtype)) for d in draws]


def give_gradients(params: list[nn.Parameter], step: int, size: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for p in params:
        g = torch.randn(p.shape, generator=generator, dtype=torch.float64) * size
        p.grad = g.to(p.dtype)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: " ".join(map(str, r.values())))
@pytest.mark.parametrize("name", FORMATS)
def test_a_step_is_the_rule_in_fp64_rounded_once(name, rule):
    dtype, train = FORMATS[name], train_node(**rule)
    params = parameters(dtype)
    optimizer = Optimizer(params, train)
    rules = [Rule(train) for _ in params]
    limits = torch.finfo(dtype)
    slack = limits.eps * (0.51 if name in ("bf16", "fp16") else 8)
    for step in range(6):
        before = [p.detach().clone() for p in params]
        give_gradients(params, step)
        grads = [p.grad.double() for p in params]
        optimizer.gradients(torch.tensor(1.0))
        optimizer.step(step, GOOD)
        asked = optimizer.asked(before)
        for p, old, g, one, said in zip(params, before, grads, rules, asked, strict=True):
            wanted = one(old.double(), g, step)
            target = old.double() + wanted
            error = (p.double() - target).abs()
            assert (
                error <= slack * target.abs().clamp(min=limits.tiny) + 1e-7 * wanted.abs()
            ).all(), step
            relative = 1e-11 if name == "fp64" else 1e-5
            torch.testing.assert_close(said, wanted, rtol=relative, atol=relative * 1e-2)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_gradients_too_small_for_the_format_squared_still_move_weights(name):
    """An fp16 gradient of 1e-6 squares to zero in fp16 and Adam's eps is zero there too."""
    params = parameters(FORMATS[name])
    optimizer = Optimizer(params, train_node(**{"train.lr": 0.1}))
    before = [p.detach().clone() for p in params]
    give_gradients(params, 0, size=1e-5)
    optimizer.gradients(torch.tensor(1.0))
    optimizer.step(0, GOOD)
    for p, old in zip(params, before, strict=True):
        moved = p.detach() - old
        assert moved.isfinite().all()
        assert moved.double().abs().mean().item() == pytest.approx(0.1, rel=0.1)
    states = optimizer.inner.state.values()
    assert {s[k].dtype for s in states for k in ("exp_avg", "exp_avg_sq")} == {torch.float32}


def test_state_dtype_param_keeps_moments_in_the_parameters_format_and_pays_for_it():
    params = parameters(torch.float16)
    optimizer = Optimizer(params, train_node(**{"train.state_dtype": "param"}))
    give_gradients(params, 0, size=1e-5)
    optimizer.gradients(torch.tensor(1.0))
    optimizer.step(0, GOOD)
    assert {s["exp_avg"].dtype for s in optimizer.inner.state.values()} == {torch.float16}
    assert not all(p.isfinite().all() for p in params)  # eps = 1e-8 is 0: the first step divides 0


def test_no_master_copy_remembers_what_rounding_dropped():
    p = nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
    optimizer = Optimizer([p], train_node(**{"train.optimizer": "sgd", "train.lr": 1.0}))
    for step in range(100):
        p.grad = torch.full_like(p, 1e-4)
        before = [p.detach().clone()]
        optimizer.gradients(torch.tensor(1.0))
        optimizer.step(step, GOOD)
        assert optimizer.asked(before)[0].double() == pytest.approx(-1e-4, rel=1e-2)
    assert (p == 1).all()


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("state", ["fp32", "param"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_step_with_found_inf_leaves_weights_and_moments_intact(name, state, optimizer):
    params = parameters(FORMATS[name])
    changes = {"train.optimizer": optimizer, "train.state_dtype": state, "train.weight_decay": 0.1}
    changes["train.eps"] = 1e-2
    ours = Optimizer(params, train_node(**changes))

    def one(step: int, found_inf: torch.Tensor, poison: bool = False) -> None:
        give_gradients(params, step)
        if poison:
            params[0].grad[0, 0] = math.nan
        ours.gradients(torch.tensor(1.0))
        ours.step(step, found_inf)

    one(0, GOOD)
    weights = [p.detach().clone() for p in params]
    state_of = [
        {k: v.clone() for k, v in ours.inner.state[p].items()}
        for p in ours.lifted_params
        if ours.inner.state[p]
    ]
    one(1, BAD, poison=True)
    assert all(torch.equal(p, w) for p, w in zip(params, weights, strict=True))
    for p, kept in zip(ours.lifted_params, state_of, strict=False):
        for key, value in kept.items():
            assert torch.equal(ours.inner.state[p][key], value), key
    one(2, GOOD)
    assert not any(torch.equal(p, w) for p, w in zip(params, weights, strict=True))


def test_the_step_after_a_skipped_one_is_as_if_it_had_not_been():
    results = []
    for skipped in (False, True):
        params = parameters(torch.float16)
        optimizer = Optimizer(params, train_node())
        for step in (0, 1, 2):
            give_gradients(params, step)
            optimizer.gradients(torch.tensor(1.0))
            if step != 1 or skipped:
                optimizer.step(step, BAD if step == 1 else GOOD)
        results.append(params)
    assert all(torch.equal(p, q) for p, q in zip(*results, strict=True))


@pytest.mark.parametrize("name", FORMATS)
def test_the_loss_scale_is_divided_out_in_at_least_fp32(name):
    params = parameters(FORMATS[name])
    give_gradients(params, 0, size=1.0)
    exact = [p.grad.double() / 4096 for p in params]
    grads = Optimizer(params, train_node()).gradients(torch.tensor(4096.0))
    for g, wanted in zip(grads, exact, strict=True):
        assert g.dtype == torch.promote_types(FORMATS[name], torch.float32)
        torch.testing.assert_close(g.double(), wanted, rtol=1e-7, atol=0)


def test_a_parameter_without_a_gradient_is_an_error():
    params = parameters(torch.float32)
    with pytest.raises(RuntimeError, match="no gradient reached a parameter"):
        Optimizer(params, train_node()).gradients(torch.tensor(1.0))


def test_zero_grad_forgets_every_gradient():
    params = parameters(torch.float16)
    optimizer = Optimizer(params, train_node())
    give_gradients(params, 0)
    optimizer.gradients(torch.tensor(1.0))
    optimizer.zero_grad()
    assert all(p.grad is None for p in (*params, *optimizer.lifted_params))


@pytest.mark.parametrize("name", FORMATS)
def test_the_total_norm_is_that_of_all_entries_and_does_not_overflow(name):
    params = parameters(FORMATS[name])
    tensors = [(p.detach() * 1e4).to(FORMATS[name]) for p in params]
    flat = torch.cat([t.double().flatten() for t in tensors])
    assert total_norm(tensors).item() == pytest.approx(flat.norm().item(), rel=1e-12)
    assert total_norm(tensors[:1]).item() == pytest.approx(tensors[0].double().norm().item())
    tensors[1][2] = math.inf
    assert not total_norm(tensors).isfinite()


# The learning rate ------------------------------------------------------------------------------


def rates(**changes) -> list[float]:
    train = train_node(**changes)
    return [learning_rate(train, t) for t in range(train.steps)]


def test_the_constant_schedule_is_constant():
    assert rates() == [0.01] * 8


def test_warm_up_rises_linearly_from_the_first_update_to_the_peak():
    assert rates(**{"train.warmup_steps": 4}) == pytest.approx(
        [0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01, 0.01, 0.01]
    )


def test_the_linear_schedule_falls_to_zero_after_the_last_update():
    found = rates(**{"train.warmup_steps": 3, "train.schedule": "linear"})
    assert found[2:] == pytest.approx([0.01, 0.01, 0.008, 0.006, 0.004, 0.002])


def test_the_cosine_schedule_falls_along_a_half_wave():
    found = rates(**{"train.schedule": "cosine"})
    assert found[0] == 0.01
    assert found[4] == pytest.approx(0.005)
    assert found[2] + found[6] == pytest.approx(0.01)
    assert found[6] == pytest.approx(0.01 * math.cos(math.pi * 3 / 8) ** 2)


def test_warm_up_for_the_whole_run_is_a_ramp():
    assert rates(**{"train.warmup_steps": 8, "train.schedule": "cosine"})[-1] == 0.01


def test_each_update_uses_its_steps_rate():
    p = nn.Parameter(torch.zeros(2, 2))
    changes = {"train.optimizer": "sgd", "train.schedule": "linear", "train.warmup_steps": 2}
    optimizer, moved = Optimizer([p], train_node(**changes)), []
    for step in range(8):
        p.grad = torch.ones_like(p)
        before = p.detach().clone()
        optimizer.gradients(torch.tensor(1.0))
        optimizer.step(step, GOOD)
        moved.append((before - p.detach())[0, 0].item())
    assert moved == pytest.approx(rates(**changes), rel=1e-4)


# Decay ------------------------------------------------------------------------------------------


def decayed(**changes) -> list[float]:
    """Share of a matrix and of a vector that is left after a step without a gradient."""
    params = [nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))]
    optimizer = Optimizer(params, train_node(**changes))
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.gradients(torch.tensor(1.0))
    optimizer.step(0, GOOD)
    return [p.detach().mean().item() for p in params]


def test_decay_shrinks_matrices_and_leaves_biases_and_norms():
    assert decayed(**{"train.weight_decay": 0.5}) == pytest.approx([1 - 0.01 * 0.5, 1])


@pytest.mark.parametrize("lr", [0.01, 0.1])
def test_independent_decay_does_not_depend_on_the_peak_rate(lr):
    changes = {"train.weight_decay": 0.03, "train.independent_weight_decay": True, "train.lr": lr}
    assert decayed(**changes) == pytest.approx([0.97, 1])
    warm = decayed(**changes, **{"train.warmup_steps": 4})
    assert warm == pytest.approx([1 - 0.03 / 4, 1])  # but it follows the schedule
