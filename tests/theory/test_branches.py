"""Sublayers as maps of covariances against the sublayers themselves, wide and with many heads."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from stability.config.knobs import Model
from stability.model.sublayers import MLP, LinearBranch
from stability.model.sublayers import Attention as TorchAttention
from stability.theory.branches import Attention, linear, mlp
from stability.theory.covariance import Cov, Tape

TOKENS, WIDTH = 6, 512
NAMES = ("gelu", "relu", "tanh", "sigmoid", "identity", "swiglu", "gelu_tanh")


def shape(**changes):
    return asdict(Model()) | {"width": WIDTH} | changes


def covariance(rank, seed, level):
    X = np.random.default_rng(seed).standard_normal((TOKENS, rank))
    return X @ X.T / rank + level


C, G = covariance(8, 0, 0.3), covariance(8, 1, 0.0)


def draws_of(matrix, generator):
    half = torch.as_tensor(np.linalg.cholesky(matrix + 1e-12 * np.eye(TOKENS)))
    return half @ torch.randn(1, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


def measured(branch, stds, draws):
    """Covariance of a torch branch's output, and of the gradient at its input."""
    generator = torch.Generator().manual_seed(0)
    out, back = np.zeros((TOKENS, TOKENS)), np.zeros((TOKENS, TOKENS))
    branch = branch.double()
    for _ in range(draws):
        with torch.no_grad():
            for name, p in branch.named_parameters():
                if name.endswith("bias"):
                    p.zero_()
                else:
                    p.normal_(generator=generator).mul_(stds[name.split(".")[0]])
        x = draws_of(C, generator).requires_grad_()
        y = branch(x)
        (g,) = torch.autograd.grad(y, x, draws_of(G, generator))
        y, g = y.detach()[0].numpy(), g[0].numpy()
        out, back = out + y @ y.T / WIDTH / draws, back + g @ g.T / WIDTH / draws
    return out, back


def predicted(branch):
    tape = Tape()
    x = Cov(tape, C)
    y = branch(x)
    y.G = G
    tape.reverse()
    return y.C, x.G


def assert_alike(theory, measurement, within):
    for found, wanted in zip(theory, measurement, strict=True):
        assert np.diagonal(found) == pytest.approx(np.diagonal(wanted), rel=within)
        assert found == pytest.approx(wanted, abs=within * wanted.max())


def test_a_linear_branch():
    stds = {"linear": 0.03}
    theory = predicted(lambda x: linear(WIDTH * 0.03**2, x))
    assert_alike(theory, measured(LinearBranch(shape()), stds, 30), 0.06)


@pytest.mark.parametrize("activation", NAMES)
def test_an_mlp(activation):
    hidden = 2 * WIDTH
    stds = {"mlp_in": 0.05, "mlp_gate": 0.04, "mlp_out": 0.03}
    fans = {"mlp_in": WIDTH, "mlp_gate": WIDTH, "mlp_out": hidden}
    gains = {role: fans[role] * std**2 for role, std in stds.items()}
    theory = predicted(lambda x: mlp(activation, gains, x))
    branch = MLP(shape(mlp_ratio=2.0, activation=activation))
    draws = 80 if activation == "swiglu" else 20  # a product of Gaussians has heavier tails
    assert_alike(theory, measured(branch, stds, draws), 0.08)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("score_gain", [0.1, 1.5])
def test_attention_values_and_scores(causal, rope, score_gain):
    head = 8
    root = np.sqrt(score_gain / WIDTH)
    stds = {"q": root, "k": root, "v": 1.3 * WIDTH**-0.5, "attn_out": 0.9 * WIDTH**-0.5}
    gains = {role: WIDTH * std**2 for role, std in stds.items()}
    mask = np.tri(TOKENS) if causal else np.ones((TOKENS, TOKENS))
    offset = np.subtract.outer(np.arange(TOKENS), np.arange(TOKENS)).astype(float) if rope else None
    theory = predicted(Attention(gains, head, mask.astype(bool), offset, heads=8000))
    position = "rope" if rope else "learned"
    branch = TorchAttention(shape(heads=WIDTH // head, causal=causal, position=position))
    assert_alike(theory, measured(branch, stds, 40), 0.06)


def test_saturated_attention_hands_back_no_rounding_error():
    gains = dict.fromkeys(("q", "k", "v", "attn_out"), 1e6)
    mask = np.tri(TOKENS, dtype=bool)
    _, back = predicted(Attention(gains, 8, mask, None, heads=8))
    assert (np.diagonal(back) >= 0).all()
    assert np.isfinite(back).all()
