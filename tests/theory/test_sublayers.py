"""Sublayers as maps of covariances against the sublayers themselves, wide and with many heads."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stability.config.knobs import Model
from stability.model.sublayers import MLP, LinearBranch
from stability.model.sublayers import Attention as TorchAttention
from stability.parts import activation_kernels
from stability.parts.activations import GELU, Identity, ReLU, SwiGLU, Tanh
from stability.theory.covariance import Cov, Tape, gaussian
from stability.theory.sublayers import (
    Attention,
    _beyond_rounding,
    _bounded,
    _rates,
    _rotate,
    _to_keys,
    _to_queries,
    hidden,
    linear,
    mlp,
    root,
)
from tiny import classes

TOKENS, WIDTH = 6, 512


def shape(**changes):
    return replace(Model(), width=WIDTH, **changes)


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
    assert_alike(theory, measured(LinearBranch(shape(), Identity()), stds, 30), 0.06)


@pytest.mark.parametrize(
    "activation", sorted(classes("activation"), key=str), ids=lambda cls: cls.__name__
)
def test_an_mlp(activation):
    hidden = 2 * WIDTH
    stds = {"mlp_in": 0.05, "mlp_gate": 0.04, "mlp_out": 0.03}
    fans = {"mlp_in": WIDTH, "mlp_gate": WIDTH, "mlp_out": hidden}
    gains = {role: fans[role] * std**2 for role, std in stds.items()}
    theory = predicted(lambda x: mlp(activation(), gains, x))
    branch = MLP(shape(mlp_ratio=2.0), activation())
    draws = 80 if activation.gated else 20  # a product of Gaussians has heavier tails
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
    theory = predicted(Attention(gains, head, mask.astype(bool), offset, samples=8000))
    position = "rope" if rope else "learned"
    branch = TorchAttention(
        shape(heads=WIDTH // head, causal=causal, position=position), Identity()
    )
    assert_alike(theory, measured(branch, stds, 40), 0.06)


def test_saturated_attention_hands_back_no_rounding_error():
    gains = dict.fromkeys(("q", "k", "v", "attn_out"), 1e6)
    mask = np.tri(TOKENS, dtype=bool)
    _, back = predicted(Attention(gains, 8, mask, None, samples=8))
    assert (np.diagonal(back) >= 0).all()
    assert np.isfinite(back).all()


# The pieces by hand ------------------------------------------------------------------------------


def attention(std, mask, heads=2, width=4, offset=None):
    gains = {"q": std, "k": std, "v": 1.0, "attn_out": 1.0}
    return Attention(gains, width, mask, offset, heads)


@pytest.mark.parametrize("seen", [2, 6])
def test_attention_saturates_where_the_scores_spread_further_than_the_largest_of_as_many(seen):
    mask = np.tri(TOKENS, dtype=bool) & ~np.tri(TOKENS, k=-seen, dtype=bool)
    edge = np.sqrt(2 * np.log(seen))
    variances = np.linspace(0.5, 1.5, TOKENS)  # of mean 1
    assert attention(1.001 * edge, mask).saturates(np.diag(variances))
    assert not attention(0.999 * edge, mask).saturates(np.diag(variances))


def test_attention_to_the_own_token_alone_saturates_as_to_two():
    assert not attention(1.1, np.eye(2, dtype=bool)).saturates(np.eye(2))
    assert attention(1.2, np.eye(2, dtype=bool)).saturates(np.eye(2))


def test_rows_of_attention_are_shares_of_what_is_seen_in_pairs_of_opposite_scores():
    mask = np.tri(TOKENS, dtype=bool)
    A = attention(2.0, mask, heads=6)._rows(C, np.random.default_rng(0))
    assert A.shape == (6, TOKENS, TOKENS)
    assert A.sum(-1) == pytest.approx(np.ones((6, TOKENS)))
    assert (A[:, ~mask] == 0).all() and (A[:, mask] > 0).all()
    scores = np.log(A[:, mask])
    logits = [np.log(a[-1]) - np.log(a[-1, 0]) for a in A]
    assert logits[0] == pytest.approx(-logits[3])
    assert not np.allclose(scores[0], scores[1])
    assert len(attention(2.0, mask, heads=1)._rows(C, np.random.default_rng(0))) == 2


def test_scores_have_the_variance_of_their_gains_whatever_the_width_of_a_head():
    mask = np.ones((2, 2), dtype=bool)
    variances = np.diag([1.0, 4.0])
    for width in (4, 64):
        wide = Attention({"q": 0.5, "k": 0.2, "v": 1, "attn_out": 1}, width, mask, None, 4000)
        A = wide._rows(variances, np.random.default_rng(0))
        difference = np.log(A[:, 0, 1]) - np.log(A[:, 0, 0])  # of q_0 k_1 and q_0 k_0
        assert difference.var() == pytest.approx(0.5 * 0.2 * (1 * 4 + 1 * 1), rel=0.1)


@pytest.mark.parametrize("rank", [2, TOKENS])
def test_a_root_multiplies_to_its_covariance_whatever_rank_and_size(rank):
    size = np.logspace(-8, 8, TOKENS)
    matrix = covariance(rank, 3, 0.0) * size[:, None] * size
    matrix[2] = matrix[:, 2] = 0  # a token without variance
    half = root(matrix)
    found, wanted = (m / size[:, None] / size for m in (half @ half.T, matrix))
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_rotary_positions_turn_pairs_of_features_at_falling_rates():
    assert _rates(4) == pytest.approx([1.0, 0.01])
    x = np.array([1.0, 2.0, 3.0, 4.0])
    still, turned = _rotate(np.tile(x, (3, 2, 1)), np.array([0.0, np.pi / 2]))[1]
    c, s = np.cos(np.pi / 200), np.sin(np.pi / 200)
    assert still == pytest.approx(x)
    assert turned == pytest.approx([-3, 2 * c - 4 * s, 1, 2 * s + 4 * c])


def test_a_gradient_is_cut_to_what_a_covariance_can_be():
    found = _bounded(np.array([[4.0, 7.0, 1.0], [7.0, 9.0, 1.0], [1.0, 1.0, -1e-9]]))
    assert found.tolist() == [[4, 6, 0], [6, 9, 0], [0, 0, 0]]


def test_a_sum_of_large_terms_is_0_where_only_rounding_is_left():
    terms = np.array([1.0, 1e8])
    total = np.array([[2e-12, 9e-9], [-9e-9, 1.0]])
    assert _beyond_rounding(total, terms).tolist() == [[2e-12, 0], [0, 1]]


def test_what_w_o_reads_and_the_three_ways_back_have_their_own_gains():
    mask = np.tri(TOKENS, dtype=bool)
    gains = {"q": 0.3, "k": 0.2, "v": 3.0, "attn_out": 5.0}
    one = Attention(dict.fromkeys(gains, 1.0) | {"q": 0.3, "k": 0.2}, 4, mask, None, 8)
    more = Attention(gains, 4, mask, None, 8)
    (read_1, back_1), (read, back) = (a.inside(C, np.random.default_rng(0)) for a in (one, more))
    assert read == pytest.approx(3 * read_1)
    for name, factor in {"q": 15.0, "k": 15.0, "v": 5.0}.items():
        assert back(G)[name] == pytest.approx(factor * back_1(G)[name])


def test_without_scores_attention_is_the_mean_of_what_is_seen():
    mask = np.tri(TOKENS, dtype=bool)
    A = np.tri(TOKENS) / np.arange(1, TOKENS + 1)[:, None]
    still = Attention({"q": 0.0, "k": 0.0, "v": 2.0, "attn_out": 3.0}, 4, mask, None, 2)
    y, back = predicted(still)
    assert y == pytest.approx(6 * A @ C @ A.T)
    assert back == pytest.approx(6 * A.T @ G @ A)


def test_the_gradient_of_the_scores_reaches_queries_and_keys_as_the_sum_over_all_pairs_says():
    """D = A o (S - rowsum(A o S)) with E[S_ia S_jb] = G_ij C_ab, summed entry by entry."""
    A = attention(3.0, np.tri(TOKENS, dtype=bool), heads=4)._rows(C, np.random.default_rng(1))
    m = A @ C
    mA = m @ A.swapaxes(1, 2)
    inner = C - np.einsum("sjc,ac->sja", A, C)[:, None, :, :, None]  # s i j a b
    inner = inner - np.einsum("sic,cb->sib", A, C)[:, :, None, None, :]
    inner = inner + mA[:, :, :, None, None]
    D = np.einsum("sia,sjb,ij,sijab->ijab", A, A, G, inner) / len(A)
    to_q = _to_queries(C, A, m, mA) * G
    np.testing.assert_allclose(to_q, np.einsum("ijab,ab->ij", D, C), atol=1e-12)
    to_k = _to_keys(C, G, A, m, mA)
    np.testing.assert_allclose(to_k, np.einsum("ijab,ij->ab", D, C), atol=1e-12)


@pytest.mark.parametrize("activation", [GELU, ReLU, Tanh])
def test_inside_an_mlp_are_the_kernel_of_its_activation_and_its_slope(activation):
    read, slopes = hidden(activation(), {"mlp_in": 2.0}, C)
    F, D = activation().kernel(2 * C)
    assert np.array_equal(read, F)
    assert np.array_equal(slopes.pop("mlp_in"), D) and not slopes


def test_inside_a_gated_mlp_two_independent_factors_multiply():
    read, slopes = hidden(SwiGLU(), {"mlp_in": 2.0, "mlp_gate": 3.0}, C)
    F, D = activation_kernels.silu(3 * C)
    np.testing.assert_allclose(read, 2 * C * F)
    np.testing.assert_allclose(slopes["mlp_in"], F)
    np.testing.assert_allclose(slopes["mlp_gate"], 2 * C * D)
    gains = {"mlp_in": 2.0, "mlp_gate": 3.0, "mlp_out": 5.0}
    y, back = predicted(lambda x: mlp(SwiGLU(), gains, x))
    np.testing.assert_allclose(y, 5 * 2 * C * F)
    np.testing.assert_allclose(back, 5 * (2 * F + 3 * 2 * C * D) * G)


def test_a_linear_branch_adds_the_draw_of_its_weights_to_what_deviates():
    x = Cov(Tape(width=WIDTH), C)
    assert linear(0.5, x).deviations is None
    x.deviations = {9: np.array([1.0, 2.0])}
    y = linear(0.5, x)
    assert y.deviations[9].tolist() == [0.5, 1.0]
    (own,) = (size for draw, size in y.deviations.items() if draw != 9)
    alone = Cov(Tape(width=WIDTH), 0.5 * C)
    alone.deviations = {9: np.array([0.5, 1.0])}
    (wanted,) = gaussian(alone).values()
    assert own.tolist() == wanted.tolist()
