"""Each probe against a slow, obvious twin; and none of them changes the training."""

import copy
import math
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.autograd.functional import jacobian as full_jacobian
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from stability.config import knobs
from stability.model import build
from stability.model.gpt import draw, loss_sum
from stability.parts.norms import BatchNorm, LayerNorm, RMSNorm
from stability.results import schema
from stability.training import job, probes
from stability.training.probes import (
    _look,
    _spectral,
    jacobian,
    norm_bytes,
    norm_jacobian,
    output_change,
    token_grad,
)
from stability.training.probes.outer_product import error
from stability.training.probes.token_cosine import mean_cosine
from tiny import CONF, make_config, options, run

ALL = list(knobs.PROBES)
FP64 = {"dtype": "fp64"}
NORMED = {"norm_bytes", "norm_jacobian", "norm_sigma", "token_mean"}
"""Probes of norms, which have no rows where there are none."""


class Taken:
    """A tiny model off its start, its batch, and the rows that the probes give of it."""

    def __init__(self, names, changes=None, **over):
        self.config = make_config({"record.probes": names, **(changes or {})}, **over)
        self.built = build.build(self.config)
        self.model = self.built.model
        with torch.no_grad():
            for i, p in enumerate(self.model.parameters()):
                p.add_(0.1 * draw(i, "shake", p.shape))
        shape = (0, self.config.train.batch_size, self.config.model.context, 0)
        self.x, self.y = map(torch.from_numpy, self.built.source.batch(*shape, 0.0))
        self.prober = probes.Prober(self.built, "run")
        self.rows = self.prober.take(0, self.x, self.y)
        keys = zip(*(self.rows[c] for c in ("layer", "sublayer", "item")), strict=True)
        self.values = dict(zip(keys, self.rows["value"], strict=True))
        self.model.eval()  # dropout off, as probes see it; norms as in training
        for sub in (s for b in self.model.blocks for s in b.sublayers().values()):
            if sub.norm is not None:
                sub.norm.train()
        if self.model.head.norm is not None:
            self.model.head.norm.train()

    def streams(self):
        """x_0 and every x_post, in a dict by place, of a pass made by hand."""
        x_BTD = self.model.embed(self.x)
        found = {(-1, "embed"): x_BTD}
        for layer, block in enumerate(self.model.blocks):
            for name, sub in block.sublayers().items():
                found[layer, name] = x_BTD = sub(x_BTD)
        return found

    def loss(self, logits):
        return loss_sum(logits, self.y) / self.y.numel()


def norm2(function, x):
    with sdpa_kernel(SDPBackend.MATH):
        full = full_jacobian(function, x.detach())
    return float(torch.linalg.matrix_norm(full.reshape(-1, x.numel()), 2))


# Jacobians ---------------------------------------------------------------------------------------


def times(matrix):
    """A function whose Jacobian is the matrix, at a point."""
    x = torch.zeros(matrix.shape[1], dtype=matrix.dtype, requires_grad=True)
    return _spectral.spectral_norm(matrix @ x, x)


@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e18])
def test_the_spectral_norm_is_that_of_the_full_matrix_at_any_scale(scale):
    matrix = (draw(0, "m", torch.Size((300, 200))) * scale).float()
    assert times(matrix) == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=2e-3)


def test_the_spectral_norm_of_odd_matrices():
    assert times(torch.zeros(5, 7)) == 0
    assert times(torch.outer(torch.ones(6), torch.ones(4))) == pytest.approx(math.sqrt(24))
    assert times(torch.eye(50)) == pytest.approx(1)
    assert times(torch.full((1, 1), -3.0)) == pytest.approx(3)
    assert math.isnan(times(torch.full((3, 3), math.nan)))
    assert math.isnan(times(torch.full((3, 3), math.inf)))


@pytest.mark.parametrize("norm_type", options("norm_type"))
@pytest.mark.parametrize("norm", options("norm"))
def test_jacobian_of_each_sublayer_branch_and_tail(norm, norm_type):
    changes = {"train.batch_size": 2, "model.context": 4, "model.width": 8, **FP64}
    taken = Taken(["jacobian"], changes, norm=norm, norm_type=norm_type)
    streams = list(taken.streams().values())
    subs = [s for b in taken.model.blocks for s in b.sublayers().values()]
    places = [k for k in taken.streams() if k[1] != "embed"]
    for place, sub, x in zip(places, subs, streams, strict=False):
        assert taken.values[*place, "sublayer"] == pytest.approx(norm2(sub, x), rel=5e-3)

    def rest(first):
        return lambda x: nn.Sequential(*subs[first:])(x)

    for layer in range(2):
        wanted = norm2(rest(2 * layer), streams[2 * layer])
        assert taken.values[layer, "block", "tail"] == pytest.approx(wanted, rel=5e-3)


CHAINS = {
    "pre": lambda s, x: [s.norm, s.f],
    "post": lambda s, x: [s.f, lambda b: s.norm(x + b)],
    "deepnorm": lambda s, x: [s.f, lambda b: s.norm(s.placement.alpha * x + b)],
    "peri": lambda s, x: [s.norm, s.f, s.norm.out],
    "none": lambda s, x: [s.f],
    "plain": lambda s, x: [s.f],
}


@pytest.mark.parametrize("norm", CHAINS)
def test_the_branch_is_the_product_of_the_jacobians_along_it(norm):
    changes = {"train.batch_size": 2, "model.context": 4, "model.width": 8, **FP64}
    taken = Taken(["jacobian"], changes, norm=norm)
    streams = list(taken.streams().values())
    for i, place in enumerate(k for k in taken.streams() if k[1] != "embed"):
        sub = taken.model.blocks[place[0]].sublayers()[place[1]]
        x, product = streams[i].detach(), torch.eye(streams[i].numel(), dtype=torch.float64)
        h = x
        with sdpa_kernel(SDPBackend.MATH):
            for step in CHAINS[norm](sub, x):
                full = full_jacobian(step, h).reshape(h.numel(), -1)
                product, h = full @ product, step(h).detach()
        wanted = float(torch.linalg.matrix_norm(product, 2))
        assert taken.values[*place, "branch"] == pytest.approx(wanted, rel=5e-3)


def test_tails_of_a_deep_net_are_a_stated_few():
    taken = Taken(["jacobian"], {"model.width": 4, "model.heads": 1}, depth=20)
    layers = [layer for layer, _, item in taken.values if item == "tail"]
    assert len(layers) == jacobian.TAILS and layers[0] == 0 and layers[-1] == 19


# Norms -------------------------------------------------------------------------------------------


def moved(norm):
    with torch.no_grad():
        norm.weight.add_(0.3 * draw(0, "g", norm.weight.shape))
        norm.bias.add_(draw(0, "b", norm.bias.shape))
    return norm


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_closed_form_of_a_tokens_jacobian_is_the_full_matrix(kind):
    d, eps = 12, 1e-2
    norm = moved(kind(d, True, eps))
    x = 0.3 * draw(0, "x", torch.Size((1, 1, d))) + 0.2
    centred = x[0, 0] - (x.mean() if kind is LayerNorm else 0)
    sigma = (centred.square().mean() + eps).sqrt()
    xhat, ones = centred / sigma, torch.ones(d, dtype=torch.float64)
    mean = torch.outer(ones, ones) / d if kind is LayerNorm else 0
    closed = (torch.eye(d, dtype=torch.float64) - mean - torch.outer(xhat, xhat) / d) / sigma
    plain = kind(d, True, eps).double()
    assert (full_jacobian(plain, x).reshape(d, d) - closed).abs().max() < 1e-12
    for j in range(d):
        column = norm_jacobian.closed_form(
            norm, x, torch.eye(d, dtype=torch.float64)[j][None, None]
        )
        assert (column[0, 0] - closed[:, j]).abs().max() < 1e-12
    items = norm_jacobian.measure(norm, x)
    assert items["error"] < 1e-12
    assert items["inverse_sigma"] == pytest.approx(float(1 / sigma))
    wanted = float(torch.linalg.matrix_norm(closed, 2))
    assert items["spectral"] == pytest.approx(wanted, rel=1e-6)
    assert wanted == pytest.approx(float(1 / sigma), rel=1e-9)


def test_closed_form_of_batchnorm_is_the_full_matrix():
    norm, x = moved(BatchNorm(3, True, 1e-5)), draw(0, "x", torch.Size((2, 5, 3)))
    full = full_jacobian(BatchNorm(3, True, 1e-5).double(), x).reshape(30, 30)
    v = draw(0, "v", x.shape)
    assert (
        norm_jacobian.closed_form(norm, x, v).flatten() - full @ v.flatten()
    ).abs().max() < 1e-12
    feature = full.reshape(10, 3, 10, 3)
    wanted = np.mean([float(torch.linalg.matrix_norm(feature[:, d, :, d], 2)) for d in range(3)])
    assert norm_jacobian.measure(norm, x)["spectral"] == pytest.approx(wanted, rel=1e-6)


def test_a_wrong_closed_form_shows(monkeypatch):
    monkeypatch.setattr(RMSNorm, "centred", True)
    norm, x = RMSNorm(8, True, 1e-5), draw(0, "x", torch.Size((2, 3, 8)))
    assert norm_jacobian.measure(norm, x)["error"] > 1e-3


@pytest.mark.parametrize("norm", ["pre", "peri", "post"])
def test_norms_are_measured_where_they_stand(norm):
    taken = Taken(["norm_jacobian", "norm_sigma"], FP64, norm=norm)
    streams = [x.detach() for x in taken.streams().values()]
    block = taken.model.blocks[0].attn
    reads = {"pre": streams[0], "peri": streams[0], "post": streams[0] + block.f(streams[0])}

    def inverse_sigma(x):
        return float((x.detach().var(-1, correction=0) + 1e-5).rsqrt().mean())

    wanted = inverse_sigma(reads[norm])
    assert taken.values[0, "attn", "norm"] == pytest.approx(wanted)
    assert taken.values[0, "attn", "inverse_sigma"] == pytest.approx(wanted)
    assert taken.values[0, "attn", "spectral"] == pytest.approx(wanted, rel=1e-6)
    assert taken.values[0, "attn", "error"] < 1e-10
    if norm == "peri":
        out = block.f(block.norm(streams[0]))
        assert taken.values[0, "attn", "norm.out"] == pytest.approx(inverse_sigma(out))
        assert taken.values[0, "attn", "out.error"] < 1e-10
    if norm != "post":
        assert taken.values[2, "head", "norm"] == pytest.approx(inverse_sigma(streams[-1]))


def test_token_mean_is_that_of_each_token_of_what_a_norm_reads():
    taken = Taken(["token_mean"], FP64, norm="pre")
    readers = [(0, "attn"), (0, "mlp"), (1, "attn"), (1, "mlp"), (2, "head")]
    for reader, x_BTD in zip(readers, taken.streams().values(), strict=True):
        tokens = x_BTD.detach().flatten(0, 1)
        ratios = [abs(x.mean()) / (x.pow(2).mean() - x.mean() ** 2).sqrt() for x in tokens]
        assert taken.values[*reader, "norm"] == pytest.approx(float(sum(ratios) / len(ratios)))


def test_traffic_is_what_operations_take_and_give_and_views_are_free():
    x = torch.ones(8, 16)
    with norm_bytes.Traffic() as traffic:
        x.view(16, 8).t()
        assert traffic.bytes == 0
        x + x.t().t()
    assert traffic.bytes == 3 * x.nbytes


def test_bytes_of_a_layernorm_are_those_of_its_two_operations_and_rmsnorm_as_run_moves_more():
    taken = {t: Taken(["norm_bytes"], FP64, norm_type=t) for t in ("layernorm", "rmsnorm")}
    width, tokens = 16, 4 * 8
    stream, statistics, affine = 5 * width, 4, 6 * width / tokens  # x, y, dy, x, dx; mean, rstd
    wanted = 8 * (stream + statistics + affine)
    found = {t: taken[t].values[0, "attn", "norm"] for t in taken}
    assert found["layernorm"] == pytest.approx(wanted)
    assert found["rmsnorm"] > 2 * wanted


# Linear layers -----------------------------------------------------------------------------------


def by_layer(taken):
    """For each linear layer: (x, y, delta, weight gradient), from hooks set by hand."""
    seen = {}

    def hook(module, inputs, output):
        output.retain_grad()
        seen[module] = (inputs[0], output)

    weights = {p: k for k, p in taken.model.weights().items()}
    hooks = [
        m.register_forward_hook(hook) for m in taken.model.modules() if type(m).__name__ == "Linear"
    ]
    taken.model.zero_grad()
    taken.loss(taken.model(taken.x)).backward()
    for h in hooks:
        h.remove()
    return {
        weights[m.weight]: (x.detach(), y.detach(), y.grad, m.weight.grad)
        for m, (x, y) in seen.items()
    }


@pytest.mark.parametrize("tied", [True, False])
def test_weight_gradients_are_outer_products_and_gains_are_ratios(tied):
    changes = {"model.tie_embeddings": tied, "activation": "swiglu"}
    taken = Taken(["outer_product"], changes)
    gains = Taken(["linear_gain"], changes).values
    slow = by_layer(taken)
    assert set(taken.values) == set(slow) == set(gains)
    assert ((2, "head", "head") in slow) is not tied
    for key, (x, y, delta, grad) in slow.items():
        total = torch.zeros_like(grad, dtype=torch.float64)
        for b in range(x.shape[0]):
            for t in range(x.shape[1]):
                total += torch.outer(delta[b, t].double(), x[b, t].double())
        slow_error = float((total - grad).norm() / grad.norm())
        assert taken.values[key] == pytest.approx(slow_error, abs=1e-6) and taken.values[key] < 1e-5
        assert gains[key] == pytest.approx(
            float(y.norm() / x.norm() * math.sqrt(x.shape[-1] / y.shape[-1])), rel=1e-5
        )


def test_a_gradient_that_is_no_outer_product_shows():
    x, delta = draw(0, "x", torch.Size((2, 3, 4))), draw(0, "d", torch.Size((2, 3, 5)))
    right = torch.einsum("bto,bti->oi", delta, x)
    flow = _look.Flow(x, delta, delta, right)
    assert error(flow) < 1e-15
    assert error(flow._replace(weight_grad_OI=1.1 * right)) == pytest.approx(0.1 / 1.1)
    zero = torch.zeros_like(right)
    assert error(flow._replace(delta_BTO=0 * delta, weight_grad_OI=zero)) == 0


# Tokens ------------------------------------------------------------------------------------------


def gradients(taken):
    """x_0 and every x_post by place, and the gradient there, by retain_grad."""
    streams = taken.streams()
    for x in streams.values():
        x.retain_grad()
    last = list(streams.values())[-1]
    taken.loss(taken.model.head(last, taken.model.embed.wte)).backward()
    return {place: (x.detach(), x.grad) for place, x in streams.items()}


def test_token_cosine_is_the_mean_over_all_pairs():
    taken = Taken(["token_cosine"], FP64)
    for (layer, sublayer), pair in gradients(taken).items():
        for item, tensor in zip(("act", "grad"), pair, strict=True):
            B, T, _ = tensor.shape
            wanted = np.mean(
                [
                    float(F.cosine_similarity(tensor[b, i], tensor[b, j], dim=0, eps=0))
                    for b in range(B)
                    for i in range(T)
                    for j in range(T)
                    if i != j
                ]
            )
            assert taken.values[layer, sublayer, item] == pytest.approx(wanted, abs=1e-12)


def test_token_cosine_leaves_out_tokens_without_a_direction():
    x = torch.tensor([[[1.0, 0], [0, 0], [1, 1]]])
    assert mean_cosine(x) == pytest.approx(math.sqrt(0.5))
    assert mean_cosine(1e-30 * x) == pytest.approx(math.sqrt(0.5))
    assert math.isnan(mean_cosine(0 * x))


def test_token_grad_splits_the_gradient_by_position():
    taken = Taken(["token_grad"], FP64)
    for (layer, sublayer), (_, grad) in gradients(taken).items():
        for t in range(8):
            wanted = float((grad[:, t] ** 2).mean())
            assert taken.values[layer, sublayer, str(t)] == pytest.approx(wanted)
    for (layer, sublayer, name), (x, _, delta, grad) in by_layer(taken).items():
        parts = {"first": [0], "quarter": [1], "rest": range(2, 8)}
        whole = torch.zeros_like(grad)
        for group, positions in parts.items():
            share = sum(delta[b, t].outer(x[b, t]) for b in range(len(x)) for t in positions)
            whole += share
            assert taken.values[layer, sublayer, f"{name}.{group}"] == pytest.approx(
                float(share.norm())
            )
        assert (whole - grad).abs().max() < 1e-12


@pytest.mark.parametrize("time", [2, 3, 64, 65, 1024])
def test_token_groups_hold_every_position_once_and_rows_stay_few(time):
    held = [t for part in token_grad.groups(time).values() for t in range(time)[part]]
    assert held == list(range(time))
    chosen = token_grad.positions(time)
    assert len(set(chosen)) == min(time, 64) and {0, time - 1} <= set(chosen)


# What the output does ----------------------------------------------------------------------------


def read_by_head(model, x):
    for part in (model.embed, *model.blocks):
        x = part(x)
    return (x if model.head.norm is None else model.head.norm(x)).detach().double()


def fixed_batch(taken):
    size, time = taken.config.train.batch_size, taken.config.model.context
    return map(torch.from_numpy, taken.built.source.val_batch(0, size, time, 0.0))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_output_change_is_that_of_a_model_with_noise_in_its_matrices(norm):
    taken = Taken(["output_change"], norm=norm)
    x, _ = fixed_batch(taken)
    before, changes = read_by_head(taken.model, x), []
    for seed in range(output_change.DRAWS):
        noisy, generator = copy.deepcopy(taken.model), torch.Generator().manual_seed(seed)
        for (_, sublayer, _), p in noisy.weights().items():
            if p.ndim == 2 and sublayer in ("attn", "mlp"):
                noise = torch.randn(p.shape, generator=generator)
                p.data += 0.01 * float(p.detach().square().mean().sqrt()) * noise
        changes.append(float((read_by_head(noisy, x) - before).square().sum(-1).mean()))
    assert taken.values[2, "head", "change"] == pytest.approx(np.mean(changes), rel=1e-3)


def test_output_change_is_of_second_order(monkeypatch):
    values = []
    for relative in (1e-3, 2e-3):
        monkeypatch.setattr(output_change, "RELATIVE", relative)
        values.append(Taken(["output_change"], FP64).values[2, "head", "change"])
    assert values[1] / values[0] == pytest.approx(4, rel=0.02)


def test_model_update_is_the_distance_from_the_start_drawn_from_the_seed():
    taken = Taken(["model_update"])
    x, _ = fixed_batch(taken)
    start = build.model_of(taken.config, taken.built.model.embed.wte.shape[0])
    moved = read_by_head(taken.model, x) - read_by_head(start, x)
    wanted = float(moved.square().sum(-1).mean().sqrt())
    assert wanted > 0.1
    assert taken.values[2, "head", "change"] == pytest.approx(wanted, rel=1e-5)
    fresh = probes.Prober(build.build(taken.config), "run").take(0, taken.x, taken.y)
    assert fresh["value"] == [0.0]


@torch.no_grad()
@pytest.mark.parametrize("over", [{"norm": "plain"}, {"norm": "pre", "norm_type": "batchnorm"}])
def test_lesion_is_the_loss_of_a_model_with_an_identity_for_a_block(over):
    taken = Taken(["lesion"], **over)
    x, y = fixed_batch(taken)
    model = taken.model.eval()
    intact = float(loss_sum(model(x), y) / y.numel())
    assert taken.values[2, "head", "intact"] == pytest.approx(intact)
    for layer in range(2):
        hurt = copy.deepcopy(model)
        hurt.blocks[layer] = nn.Identity()
        rise = float(loss_sum(hurt(x), y) / y.numel()) - intact
        assert taken.values[layer, "block", "rise"] == pytest.approx(rise, abs=1e-6)


# As part of a run --------------------------------------------------------------------------------

TRAINED = {
    "train.steps": 4,
    "train.keep_checkpoint": True,
    "train.accumulate": 2,
    "model.dropout": 0.1,
    "record.every": 2,
}


def numbers(frame):
    return frame.drop(columns=[c for c in ("run", "step_s", "record_s") if c in frame])


def probes_of(ran):
    return pd.read_parquet(ran.folder / "probes.parquet")


@pytest.mark.parametrize("norm_type", ["layernorm", "batchnorm"])
def test_probing_leaves_the_training_bitwise_as_it_was(norm_type, tmp_path):
    rans = []
    for name, asked in (("off", []), ("on", ALL)):
        torch.manual_seed(0)
        changes = {**TRAINED, "record.probes": asked, "train.eval_every": 1}
        rans.append(run(make_config(changes, norm_type=norm_type), tmp_path / name))
        rans[-1].built.model._left = torch.rand(4)  # what the global generator gives next
    off, on = rans
    assert off.info["run"] != on.info["run"]
    pd.testing.assert_frame_equal(numbers(off.layers), numbers(on.layers), check_exact=True)
    pd.testing.assert_frame_equal(numbers(off.steps), numbers(on.steps), check_exact=True)
    states = [r.built.model.state_dict() for r in rans]
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert torch.equal(off.built.model._left, on.built.model._left)
    assert not (off.folder / "probes.parquet").exists()
    rows = probes_of(on)
    assert sorted(set(rows.step)) == [0, 2, 3] and set(rows.probe) == set(ALL)
    assert not rows.duplicated(["step", "layer", "sublayer", "probe", "item"]).any()
    assert list(rows.columns) == [c.name for c in schema.PROBES]
    assert rows.value.notna().all()


def test_a_resumed_run_has_each_row_once_and_the_same_numbers(tmp_path):
    asked = [n for n in ALL if n != "jacobian"]
    cfg = make_config({**TRAINED, "record.probes": asked, "train.checkpoint_every": 0})
    whole = run(cfg, tmp_path / "whole")
    calls = iter([False, False, False, True])
    job.execute(cfg, tmp_path / "cut", stop=lambda: next(calls))
    resumed = run(cfg, tmp_path / "cut")
    pd.testing.assert_frame_equal(probes_of(whole), probes_of(resumed), check_exact=True)


def test_the_intact_loss_is_the_validation_loss(tmp_path):
    ran = run(make_config({"record.probes": ["lesion"], "train.eval_every": 1}), tmp_path / "run")
    rows = probes_of(ran)
    intact = rows[rows.item == "intact"].value.tolist()
    assert intact == pytest.approx(ran.steps.val_loss.tolist(), rel=1e-6)


def test_a_diverged_run_keeps_its_probes(tmp_path):
    changes = {"train.lr": 1e30, "optimizer": "sgd", "record.probes": ALL, "train.steps": 6}
    ran = run(make_config(changes, norm="none"), tmp_path / "run")
    assert ran.info["status"] == "diverged"
    rows = probes_of(ran)
    assert set(rows.step) <= set(ran.steps.step) and 0 in set(rows.step)
    assert not rows.duplicated(["step", "layer", "sublayer", "probe", "item"]).any()


VARIANTS = [
    *(
        {"norm": norm, "norm_type": kind}
        for norm in options("norm")
        for kind in options("norm_type")
    ),
    *({"init": init} for init in options("init")),
    *({"dtype": dtype} for dtype in knobs.DTYPES),
    {"model.position": "rope", "model.causal": False, "data.pad_share": 0.3},
    {"activation": "relu", "model.bias": False},
    {"model.sublayers": "linear"},
    {"model.sublayers": "mlp", "checkpointing": True},
]


@pytest.mark.parametrize("over", VARIANTS, ids=str)
def test_every_option_can_be_probed(over):
    changes = {k: v for k, v in over.items() if "." in k}
    taken = Taken(ALL, changes, **{k: v for k, v in over.items() if "." not in k})
    assert np.isfinite(taken.rows["value"]).all()
    assert set(taken.rows["probe"]) == set(ALL) - (
        NORMED if over.get("norm") in ("none", "plain") else set()
    )
    wide = torch.float64 if over.get("dtype") == "fp64" else torch.float32
    assert {p.dtype for p in taken.prober.look.model.parameters()} == {wide}


def test_probes_are_found_by_looking_and_documented():
    folder = CONF.parent / "src" / "stability" / "training" / "probes"
    assert {p.stem for p in folder.glob("[!_]*.py")} == set(ALL)
    assert all(f"``{name}``" in probes.__doc__ for name in ALL)
    assert asdict(knobs.Config())["record"]["probes"] == []


@pytest.mark.parametrize("names", [["jacobians"], ["lesion", "lesion"], ["_look"]])
def test_unknown_probes_are_refused(names):
    with pytest.raises(knobs.ConfigError, match=r"record.probes.*jacobian, lesion"):
        make_config({"record.probes": names})
