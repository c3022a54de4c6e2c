"""Every update rule against itself in fp64; what rounds, what is skipped and what decays."""

import math
import sys

import pytest
import torch
from torch import nn

from stability.config import instantiate
from stability.config.knobs import Config, ConfigError
from stability.config.names import Key
from stability.model import build, preflight
from stability.model.optim import Optimizer, learning_rate, total_norm
from tiny import make_config, options, run

FORMATS = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
FORMATS["fp16"] = torch.float16
RULES = [
    {"optimizer": "adamw"},
    {"optimizer": "adamw", "train.weight_decay": 0.5},
    {
        "optimizer": "adamw",
        "train.weight_decay": 0.01,
        "optimizer.independent_weight_decay": True,
    },
    {"optimizer": "adam", "train.weight_decay": 0.5, "optimizer.betas": [0.8, 0.99]},
    {"optimizer": "adam", "optimizer.eps": 1e-3},
    {"optimizer": "sgd", "train.weight_decay": 0.5},
    {"optimizer": "sgd", "train.schedule": "cosine", "train.warmup_steps": 2},
]
GOOD, BAD = torch.tensor(0.0), torch.tensor(1.0)


def config_of(**changes) -> Config:
    return make_config({"train.lr": 0.01, "train.steps": 8, **changes})


def optimizer_of(params: list[nn.Parameter], **changes) -> Optimizer:
    config = config_of(**changes)
    weights = {Key(0, "mlp", f"w{i}"): p for i, p in enumerate(params)}
    return Optimizer(weights, build.update_rule_of(config), config.train)


class Rule:
    """The update of one parameter by its paper, in fp64: what it adds to the weight."""

    def __init__(self, config: Config) -> None:
        self.name, self.own, self.train = (
            config.choices["optimizer"],
            config.optimizer,
            config.train,
        )
        self.t, self.m, self.v = 0, 0.0, 0.0

    def __call__(self, w: torch.Tensor, g: torch.Tensor, step: int) -> torch.Tensor:
        train = self.train
        lr, decay = learning_rate(train, step), train.weight_decay if w.ndim >= 2 else 0.0
        if self.name == "sgd":
            return -lr * (g + decay * w)
        if self.name == "adam":
            g = g + decay * w
        (b1, b2), self.t = self.own.betas, self.t + 1
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g**2
        ratio = (self.m / (1 - b1**self.t)) / ((self.v / (1 - b2**self.t)) ** 0.5 + self.own.eps)
        if self.name == "adam":
            return -lr * ratio
        if self.own.independent_weight_decay:
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


def test_every_optimizer_has_its_rule_here():
    assert {rule["optimizer"] for rule in RULES} == set(options("optimizer"))


@pytest.mark.parametrize("rule", RULES, ids=lambda r: " ".join(map(str, r.values())))
@pytest.mark.parametrize("name", FORMATS)
def test_a_step_is_the_rule_in_fp64_rounded_once(name, rule):
    dtype = FORMATS[name]
    params = parameters(dtype)
    optimizer = optimizer_of(params, **rule)
    rules = [Rule(config_of(**rule)) for _ in params]
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
    optimizer = optimizer_of(params, **{"train.lr": 0.1})
    before = [p.detach().clone() for p in params]
    give_gradients(params, 0, size=1e-5)
    optimizer.gradients(torch.tensor(1.0))
    optimizer.step(0, GOOD)
    for p, old in zip(params, before, strict=True):
        moved = p.detach() - old
        assert moved.isfinite().all()
        assert moved.double().abs().mean().item() == pytest.approx(0.1, rel=0.1)
    states = optimizer.inner[0].state.values()
    assert {s[k].dtype for s in states for k in ("exp_avg", "exp_avg_sq")} == {torch.float32}


def test_state_dtype_param_keeps_moments_in_the_parameters_format_and_pays_for_it():
    params = parameters(torch.float16)
    optimizer = optimizer_of(params, **{"train.state_dtype": "param"})
    give_gradients(params, 0, size=1e-5)
    optimizer.gradients(torch.tensor(1.0))
    optimizer.step(0, GOOD)
    assert {s["exp_avg"].dtype for s in optimizer.inner[0].state.values()} == {torch.float16}
    assert not all(p.isfinite().all() for p in params)  # eps = 1e-8 is 0: the first step divides 0


def test_no_master_copy_remembers_what_rounding_dropped():
    p = nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
    optimizer = optimizer_of([p], **{"optimizer": "sgd", "train.lr": 1.0})
    for step in range(100):
        p.grad = torch.full_like(p, 1e-4)
        before = [p.detach().clone()]
        optimizer.gradients(torch.tensor(1.0))
        optimizer.step(step, GOOD)
        assert optimizer.asked(before)[0].double() == pytest.approx(-1e-4, rel=1e-2)
    assert (p == 1).all()


@pytest.mark.parametrize("optimizer", options("optimizer"))
@pytest.mark.parametrize("state", ["fp32", "param"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_step_with_found_inf_leaves_weights_and_moments_intact(name, state, optimizer):
    params = parameters(FORMATS[name])
    changes = {"optimizer": optimizer, "train.state_dtype": state, "train.weight_decay": 0.1}
    if config_of(optimizer=optimizer).optimizer.eps is not None:
        changes["optimizer.eps"] = 1e-2
    ours = optimizer_of(params, **changes)

    def one(step: int, found_inf: torch.Tensor, poison: bool = False) -> None:
        give_gradients(params, step)
        if poison:
            params[0].grad[0, 0] = math.nan
        ours.gradients(torch.tensor(1.0))
        ours.step(step, found_inf)

    one(0, GOOD)
    weights = [p.detach().clone() for p in params]
    state_of = [
        {k: v.clone() for k, v in ours.inner[0].state[p].items()}
        for p in ours.lifted_params
        if ours.inner[0].state[p]
    ]
    one(1, BAD, poison=True)
    assert all(torch.equal(p, w) for p, w in zip(params, weights, strict=True))
    for p, kept in zip(ours.lifted_params, state_of, strict=False):
        for key, value in kept.items():
            assert torch.equal(ours.inner[0].state[p][key], value), key
    one(2, GOOD)
    assert not any(torch.equal(p, w) for p, w in zip(params, weights, strict=True))


def test_the_step_after_a_skipped_one_is_as_if_it_had_not_been():
    results = []
    for skipped in (False, True):
        params = parameters(torch.float16)
        optimizer = optimizer_of(params)
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
    grads = optimizer_of(params).gradients(torch.tensor(4096.0))
    for g, wanted in zip(grads, exact, strict=True):
        assert g.dtype == torch.promote_types(FORMATS[name], torch.float32)
        torch.testing.assert_close(g.double(), wanted, rtol=1e-7, atol=0)


def test_a_parameter_without_a_gradient_is_an_error():
    params = parameters(torch.float32)
    with pytest.raises(RuntimeError, match=r"no gradient reached .*does not contribute"):
        optimizer_of(params).gradients(torch.tensor(1.0))


def test_zero_grad_forgets_every_gradient():
    params = parameters(torch.float16)
    optimizer = optimizer_of(params)
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
    train = config_of(**changes).train
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
    changes = {"optimizer": "sgd", "train.schedule": "linear", "train.warmup_steps": 2}
    optimizer, moved = optimizer_of([p], **changes), []
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
    optimizer = optimizer_of(params, **changes)
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.gradients(torch.tensor(1.0))
    optimizer.step(0, GOOD)
    return [p.detach().mean().item() for p in params]


def test_decay_shrinks_matrices_and_leaves_biases_and_norms():
    assert decayed(**{"train.weight_decay": 0.5}) == pytest.approx([1 - 0.01 * 0.5, 1])


@pytest.mark.parametrize("lr", [0.01, 0.1])
def test_independent_decay_does_not_depend_on_the_peak_rate(lr):
    changes = {
        "train.weight_decay": 0.03,
        "optimizer.independent_weight_decay": True,
        "train.lr": lr,
    }
    assert decayed(**changes) == pytest.approx([0.97, 1])
    warm = decayed(**changes, **{"train.warmup_steps": 4})
    assert warm == pytest.approx([1 - 0.03 / 4, 1])  # but it follows the schedule


# Rules from outside the package -----------------------------------------------------------------

SIGNS = """
import torch

from stability.parts.optimizers import SGD, AdamW, UpdateRule


class Signs(UpdateRule):
    \"\"\"Matrices move by -lr_factor lr sign(g); biases, norms and embeddings by AdamW.\"\"\"

    def __init__(self, factor: float) -> None:
        self.factor, self.rest = factor, AdamW([0.9, 0.95], 1e-8, False)

    def make(self, weights, train, fused):
        inside = {k: w for k, w in weights.items() if w.ndim == 2 and k.sublayer != "embed"}
        others = {k: w for k, w in weights.items() if k not in inside}
        groups = [{"params": [*inside.values()], "lr_factor": self.factor}]
        return [Sign(groups, {"lr": train.lr}), *self.rest.make(others, train, fused)]

    def asked(self, inner, group, w, old):
        if isinstance(inner, Sign):
            return -group["lr"] * w.grad.double().sign()
        return self.rest.asked(inner, group, w, old)


class Sign(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                w -= group["lr"] * w.grad.sign()


class Forgetful(SGD):
    def make(self, weights, train, fused):
        return super().make(dict(list(weights.items())[1:]), train, fused)
"""


@pytest.fixture
def signs(tmp_path, monkeypatch):
    """A ``build`` node of a class that lies in a folder of the user's."""
    monkeypatch.setattr(instantiate, "_allowed", {"stability"})
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "signs_rule.py").write_text(SIGNS)
    instantiate.trust(tmp_path)
    yield {"_target_": "signs_rule.Signs", "factor": 0.5}
    sys.modules.pop("signs_rule", None)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_rule_may_be_made_of_two_optimizers(signs, dtype, tmp_path):
    changes = {
        "optimizer.build": signs,
        "train.steps": 4,
        "train.lr": 0.01,
        "train.warmup_steps": 2,
    }
    ran = run(make_config(changes, dtype=dtype), tmp_path / "run")
    assert ran.info["status"] == "completed"
    for step, lr in enumerate([0.005, 0.01, 0.01, 0.01]):
        for name, factor in (("q", 0.5), ("mlp_out", 0.5), ("wte", None), ("norm.weight", None)):
            layer, sublayer = (0, "mlp" if name == "mlp_out" else "attn")
            if name == "wte":
                layer, sublayer = -1, "embed"
            where = {"step": step, "layer": layer, "sublayer": sublayer, "site": name}
            moved = ran.value("absmax", kind="update", **where)
            if factor is not None:
                slack = 1e-3 if dtype == "fp16" else 1e-6
                assert moved == pytest.approx(factor * lr, abs=slack)
            elif step == 0 and dtype == "fp32":  # Adam's first step is lr sign(g) too
                assert moved == pytest.approx(lr, rel=1e-3)


def test_both_optimizers_of_a_rule_go_into_the_checkpoint_and_come_back(signs):
    weights = {Key(0, "mlp", "w"): nn.Parameter(torch.ones(2, 2))}
    weights[Key(0, "mlp", "b")] = nn.Parameter(torch.ones(2))
    config = config_of(**{"optimizer.build": signs})

    def stepped(optimizer: Optimizer) -> Optimizer:
        for p in optimizer.params:
            p.grad = torch.full_like(p, 0.1)
        optimizer.gradients(torch.tensor(1.0))
        optimizer.step(0, GOOD)
        return optimizer

    rule = build.update_rule_of(config)
    saved = stepped(Optimizer(weights, rule, config.train)).state_dict()
    other = Optimizer(weights, rule, config.train)
    other.load_state_dict(saved)
    assert [s["param_groups"] for s in saved["inner"]] == [
        s["param_groups"] for s in other.state_dict()["inner"]
    ]
    assert len(saved["inner"]) == 2
    (moments,) = other.inner[1].state.values()
    assert moments["exp_avg"].tolist() == pytest.approx([0.01, 0.01])


def test_a_bad_step_is_skipped_by_fused_and_by_external_optimizers(signs):
    params = parameters(torch.float32)
    optimizer = optimizer_of(params, **{"optimizer.build": signs})
    before = [p.detach().clone() for p in params]
    give_gradients(params, 0)
    optimizer.gradients(torch.tensor(1.0))
    optimizer.step(0, BAD)
    assert all(torch.equal(p, old) for p, old in zip(params, before, strict=True))


def test_a_rule_that_leaves_out_a_weight_is_refused_before_the_run(signs):
    config = config_of(**{"optimizer.build": {"_target_": "signs_rule.Forgetful"}})
    with pytest.raises(ConfigError, match="is in 0 parameter groups, not in one") as refused:
        preflight.check(config)
    assert refused.value.key == "optimizer.build._target_"
