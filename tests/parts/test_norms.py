"""Each norm against its formula in NumPy and its twin in torch.nn, in every format."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stability.model import build
from stability.parts.norms import BatchNorm, LayerNorm, RMSNorm
from tiny import classes, make_config, options

D, EPS = 12, 1e-5
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
FUSED = {LayerNorm: nn.LayerNorm, RMSNorm: nn.RMSNorm, BatchNorm: nn.BatchNorm1d}


def formula(cls: type, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    if cls is RMSNorm:
        return gamma * x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) + beta
    axes = -1 if cls is LayerNorm else (0, 1)
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return gamma * (x - mean) / np.sqrt(var + EPS) + beta


def stream(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(shape, generator=generator, dtype=torch.float64) + 1


def tilted(cls: type, bias: bool = True) -> nn.Module:
    """A norm in fp64 whose gamma and beta are not those it starts from."""
    norm = cls(D, bias, EPS).double()
    with torch.no_grad():
        for i, p in enumerate(norm.parameters()):
            p.copy_(stream(D, seed=10 + i))
    return norm


def same_norm_of_torch(norm: nn.Module) -> nn.Module:
    twin = FUSED[type(norm)](D, eps=EPS).double()
    with torch.no_grad():
        twin.weight.copy_(norm.weight)
        if hasattr(twin, "bias"):
            twin.bias.copy_(norm.bias)
    return twin


def test_every_norm_of_conf_has_its_formula_and_its_twin_here():
    assert set(FUSED) == classes("norm_type")


@pytest.mark.parametrize("cls", FUSED)
def test_each_norm_is_its_formula(cls):
    norm, x = tilted(cls), stream(3, 5, D)
    wanted = formula(cls, x.numpy(), *(p.detach().numpy() for p in norm.parameters()))
    np.testing.assert_allclose(norm(x).detach().numpy(), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cls", FUSED)
def test_each_norm_and_its_gradients_are_those_of_torch(cls):
    norm = tilted(cls, bias=cls is not RMSNorm)  # torch's RMSNorm has no beta
    twin = same_norm_of_torch(norm)
    results = []
    for module in (norm, twin):
        x = stream(3, 5, D).requires_grad_()
        y = module(x.flatten(0, 1)).unflatten(0, (3, 5)) if module is twin else module(x)
        grads = torch.autograd.grad((y * stream(3, 5, D, seed=1)).sum(), (x, *module.parameters()))
        results.append((y, *grads))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", options("norm_type"))
def test_norms_start_at_the_identity_scale(name):
    norm = build.parts_of(make_config(norm_type=name)).norm()
    assert torch.equal(norm.weight, torch.ones(16))
    assert torch.equal(norm.bias, torch.zeros(16))
    without = build.parts_of(make_config({"model.bias": False}, norm_type=name)).norm()
    assert "bias" not in dict(without.named_parameters())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", options("norm_type"))
def test_a_norm_returns_the_streams_dtype_and_computes_in_a_wider_one(name, dtype):
    make = build.parts_of(make_config({"model.width": 64}, norm_type=name)).norm
    exact, norm = make().double(), make()
    for p in norm.parameters():
        p.data = p.data.to(dtype)
    for size in (1.0, 300.0, 2e4):  # the squares of the last two overflow in fp16
        x = (torch.randn(4, 8, 64, dtype=torch.float64) * size).clamp(-6e4, 6e4).to(dtype)
        y = norm(x)
        assert y.dtype == dtype
        assert y.isfinite().all()
        error = (y.double() - exact(x.double())).abs().max()
        assert error <= 8 * torch.finfo(dtype).eps, (size, error)


@pytest.mark.parametrize("name", options("norm_type"))
def test_under_autocast_a_norm_stays_in_fp32(name):
    norm = build.parts_of(make_config(norm_type=name)).norm()
    x = torch.randn(2, 3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        y = norm(x)
    assert y.dtype == torch.float32
    assert torch.equal(y, norm.train()(x))


def test_eps_bounds_what_a_constant_stream_becomes():
    x = torch.full((2, 3, D), 1e-3, dtype=torch.float64)
    assert torch.equal(LayerNorm(D, True, EPS).double()(x), torch.zeros_like(x))
    wanted = 1e-3 / math.sqrt(1e-6 + EPS)
    torch.testing.assert_close(RMSNorm(D, True, EPS).double()(x), torch.full_like(x, wanted))


def test_batchnorm_keeps_the_running_statistics_of_torch_and_uses_them_in_evaluation():
    norm, x = tilted(BatchNorm), stream(3, 5, D)
    twin = same_norm_of_torch(norm)
    for seed in range(3):
        norm(stream(3, 5, D, seed=seed)), twin(stream(3, 5, D, seed=seed).flatten(0, 1))
    torch.testing.assert_close(norm.running_mean, twin.running_mean)
    torch.testing.assert_close(norm.running_var, twin.running_var)
    kept = norm.running_mean.clone()
    theirs = twin.eval()(x.flatten(0, 1)).unflatten(0, (3, 5))
    torch.testing.assert_close(norm.eval()(x), theirs)
    assert torch.equal(norm.running_mean, kept)


def test_batchnorm_sees_the_future_in_training_and_not_in_evaluation():
    norm, x = BatchNorm(D, True, EPS).double(), stream(2, 5, D)
    later = x.clone()
    later[:, -1] += 10
    assert not torch.equal(norm(x)[:, 0], norm(later)[:, 0])
    norm.eval()
    assert torch.equal(norm(x)[:, 0], norm(later)[:, 0])


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recompute_does_not_update_the_running_statistics_again(reentrant):
    plain, saved = BatchNorm(D, True, EPS).double(), BatchNorm(D, True, EPS).double()
    x = stream(2, 5, D).requires_grad_()
    plain(x).square().sum().backward()
    grad, x.grad = x.grad, None
    checkpoint(saved, x, use_reentrant=reentrant).square().sum().backward()
    torch.testing.assert_close(x.grad, grad, rtol=1e-12, atol=1e-12)
    assert torch.equal(saved.running_mean, plain.running_mean)
    assert torch.equal(saved.running_var, plain.running_var)


def test_the_running_statistics_of_a_half_precision_model_are_kept_in_fp32():
    model = build.model_of(make_config(norm_type="batchnorm", dtype="fp16"), vocab=32)
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    assert {b.dtype for b in model.buffers()} == {torch.float32}
    model = build.model_of(make_config(norm_type="batchnorm", dtype="fp64"), vocab=32)
    assert {b.dtype for b in model.buffers()} == {torch.float64}
