"""The operand: what an equation may do with it, and what its tape gives back."""

import numpy as np
import pytest

import laws
from stability.parts.placements import DeepNorm, NoNorm, Norms, Peri, Plain, Post, Pre
from stability.theory import kernels
from stability.theory.branches import linear
from stability.theory.covariance import Cov, NoTheory, Tape, gaussian, normed

WIDTH, GAIN = 1_000_000, 0.5
C = np.array([[2.0, 0.5], [0.5, 1.0]])
G = np.array([[1.0, -0.2], [-0.2, 3.0]])


def stack(placement, tape, sublayers):
    x = first = Cov(tape, C, np.ones(2))
    norm = kernels.RMSNorm(WIDTH, 0.0)
    for _ in range(sublayers):
        x = placement(x, lambda x: linear(GAIN, x), Norms(lambda name, x: normed(norm, x)))
    return first, x


def through(placement, sublayers=3):
    """C at the end and G at the start of some sublayers with a linear branch."""
    tape = Tape()
    first, last = stack(placement, tape, sublayers)
    last.G = G
    tape.reverse()
    return last.C, first.G


def test_without_norms_variance_and_gradient_grow_alike():
    factor = (1 + GAIN) ** 3
    last, first = through(NoNorm(3, 0, "linear"))
    assert last == pytest.approx(factor * C)
    assert first == pytest.approx(factor * G)
    last, first = through(Plain(3, 0, "linear"))
    assert last == pytest.approx(GAIN**3 * C)
    assert first == pytest.approx(GAIN**3 * G)


def test_pre_adds_one_branch_a_sublayer_and_its_gradient_grows_as_one_over_variance():
    last, first = through(Pre(3, 0, "linear"), 3)
    assert np.diagonal(last) == pytest.approx(np.diagonal(C) + 3 * GAIN)
    factor = 1.0
    for n in range(3):
        factor = factor * (1 + GAIN / (np.diagonal(C) + n * GAIN))
    assert np.diagonal(first) == pytest.approx(factor * np.diagonal(G), rel=1e-5)


def test_post_resets_the_variance_and_a_linear_branch_pays_its_norm_back():
    last, first = through(Post(3, 0, "linear"), 3)
    assert np.diagonal(last) == pytest.approx(1)
    # 1/sigma^2 = 1/(1+g) and the factor 1+g of I + W cancel: only the embedding's norm remains.
    assert np.diagonal(first) == pytest.approx(np.diagonal(G) / np.diagonal(C), rel=1e-5)


def test_peri_and_deepnorm_follow_their_constants():
    last, _ = through(Peri(3, 0, "linear"), 3)
    assert np.diagonal(last) == pytest.approx(np.diagonal(C) + 3)
    placement = DeepNorm(3, 0, "linear")
    tape = Tape()
    _, end = stack(placement, tape, 1)
    end.G = G
    tape.reverse()
    share = placement.alpha**2 / (placement.alpha**2 + GAIN)
    assert end.kept**2 == pytest.approx(share / np.diagonal(C))


def test_the_embedding_is_kept_by_the_stream_and_lost_in_a_branch():
    _, last = stack(NoNorm(3, 0, "linear"), Tape(), 3)
    assert np.array_equal(last.kept, np.ones(2))
    _, last = stack(Plain(3, 0, "linear"), Tape(), 1)
    assert np.array_equal(last.kept, np.zeros(2))


def test_terms_that_are_not_independent_are_refused():
    x = Cov(Tape(), C)
    with pytest.raises(NoTheory):
        _ = x + x
    with pytest.raises(NoTheory):
        _ = x + 0.5 * (x + linear(GAIN, x))
    _ = x + linear(GAIN, x) + linear(GAIN, x)  # two branches have weights of their own


@pytest.mark.parametrize("sublayers", [4, 16])
def test_the_first_order_in_width_is_that_of_a_linear_post_stack(sublayers):
    """E |delta_0|^2 of N(x + W x) grows by 1 + (1 - h^2)/d a sublayer, h = 1/(1+g): one token."""
    width, draws = 24, 8000
    rng = np.random.default_rng(0)
    total = 0.0
    for _ in range(draws // 100):
        x = rng.standard_normal((100, width))
        x *= np.sqrt(width) / np.linalg.norm(x, axis=1, keepdims=True)
        sigmas, matrices, hats = [], [], []
        for _ in range(sublayers):
            M = np.eye(width) + rng.standard_normal((100, width, width)) * np.sqrt(GAIN / width)
            z = np.einsum("nij,nj->ni", M, x)
            sigma = np.sqrt((z * z).mean(1, keepdims=True))
            x = z / sigma
            sigmas, matrices, hats = [*sigmas, sigma], [*matrices, M], [*hats, x]
        g = rng.standard_normal((100, width))
        for sigma, M, xhat in zip(*(reversed(s) for s in (sigmas, matrices, hats)), strict=True):
            g = (g - xhat * (xhat * g).mean(1, keepdims=True)) / sigma
            g = np.einsum("nij,ni->nj", M, g)
        total += (g * g).mean() * 100 / draws

    tape, norm = Tape(), kernels.RMSNorm(width, 0.0)
    x = first = normed(norm, Cov(tape, np.eye(1)))
    for _ in range(sublayers):
        x = normed(norm, x + linear(GAIN, x))
    x.G = np.eye(1)
    tape.reverse()
    assert first.G[0, 0] == pytest.approx(total, rel=0.03 + (sublayers / width) ** 2 / 4)


# How far a net of finite width strays ------------------------------------------------------------


def test_one_token_without_norms_strays_as_the_closed_form_says():
    x = Cov(Tape(width=256), np.eye(1))
    x.strays = {}
    for _ in range(24):
        x = x + linear(GAIN, x)
    assert x.spread == pytest.approx(laws.growth_spread(24, GAIN, 256), rel=1e-3)


def test_a_norm_takes_away_what_the_mean_square_strays_and_an_unknown_branch_hides_it():
    x = Cov(Tape(width=64), C)
    x.strays = gaussian(x)
    assert x.spread == pytest.approx(np.sqrt(2 * (C * C).mean() / 64) / 1.5)
    assert (3.0 * x).spread == pytest.approx(x.spread)
    assert normed(kernels.RMSNorm(64, 0.0), x).spread == 0
    hidden = x + x.then(C, lambda G: G)
    assert np.isnan(hidden.spread)
    assert normed(kernels.RMSNorm(64, 0.0), hidden).spread == 0


@pytest.mark.parametrize("norms", [False, True])
def test_the_mean_square_of_many_tokens_strays_as_in_draws(norms):
    """Tokens that hardly correlate: here pairs that stray by chance make half of it."""
    width, tokens, draws, sublayers = 48, 24, 600, 12
    rng = np.random.default_rng(0)
    x = rng.standard_normal((draws, tokens, width))
    for _ in range(sublayers):
        read = x / np.sqrt((x * x).mean(2, keepdims=True)) if norms else x
        x = x + read @ rng.standard_normal((draws, width, width)) * np.sqrt(GAIN / width)
    squares = (x * x).mean((1, 2))

    y = Cov(Tape(width=width), np.eye(tokens))
    y.strays = gaussian(y)
    for _ in range(sublayers):
        y = y + linear(GAIN, normed(kernels.RMSNorm(width, 0.0), y) if norms else y)
    assert y.spread == pytest.approx(np.log(squares).std(), rel=0.1)
