"""The operand: what an equation may do with it, and what its tape gives back."""

import numpy as np
import pytest
import torch

import laws
from stability.parts.placements import DeepNorm, NoNorm, Norms, Peri, Plain, Post, Pre
from stability.theory import norm_kernels
from stability.theory.covariance import (
    Cov,
    Tape,
    gaussian,
    normed,
    overlap,
    scaled,
    summed,
)
from stability.theory.limits import NoTheory
from stability.theory.sublayers import linear

WIDTH, GAIN = 1_000_000, 0.5
C = np.array([[2.0, 0.5], [0.5, 1.0]])
G = np.array([[1.0, -0.2], [-0.2, 3.0]])


def stack(placement, tape, sublayers):
    x = first = Cov(tape, C, np.ones(2))
    norm = norm_kernels.RMSNorm(WIDTH, 0.0)
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
    assert end.embedding_factor**2 == pytest.approx(share / np.diagonal(C))


def test_the_embedding_is_kept_by_the_stream_and_lost_in_a_branch():
    _, last = stack(NoNorm(3, 0, "linear"), Tape(), 3)
    assert np.array_equal(last.embedding_factor, np.ones(2))
    _, last = stack(Plain(3, 0, "linear"), Tape(), 1)
    assert np.array_equal(last.embedding_factor, np.zeros(2))


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

    tape, norm = Tape(), norm_kernels.RMSNorm(width, 0.0)
    x = first = normed(norm, Cov(tape, np.eye(1)))
    for _ in range(sublayers):
        x = normed(norm, x + linear(GAIN, x))
    x.G = np.eye(1)
    tape.reverse()
    assert first.G[0, 0] == pytest.approx(total, rel=0.03 + (sublayers / width) ** 2 / 4)


# How far a net of finite width deviates -----------------------------------------------------------


def test_one_token_without_norms_deviates_as_the_closed_form_says():
    x = Cov(Tape(width=256), np.eye(1))
    x.deviations = {}
    for _ in range(24):
        x = x + linear(GAIN, x)
    assert x.spread == pytest.approx(laws.growth_spread(24, GAIN, 256), rel=1e-3)


def test_a_norm_takes_away_what_the_mean_square_deviates_by_and_an_unknown_branch_hides_it():
    x = Cov(Tape(width=64), C)
    x.deviations = gaussian(x)
    assert x.spread == pytest.approx(np.sqrt(2 * (C * C).mean() / 64) / 1.5)
    assert (3.0 * x).spread == pytest.approx(x.spread)
    assert normed(norm_kernels.RMSNorm(64, 0.0), x).spread == 0
    hidden = x + x.then(C, lambda G: G)
    assert np.isnan(hidden.spread)
    assert normed(norm_kernels.RMSNorm(64, 0.0), hidden).spread == 0


@pytest.mark.parametrize("norms", [False, True])
def test_the_mean_square_of_many_tokens_deviates_as_in_draws(norms):
    """Tokens that hardly correlate: here pairs that deviate by chance make half of it."""
    width, tokens, draws, sublayers = 48, 24, 600, 12
    rng = np.random.default_rng(0)
    x = rng.standard_normal((draws, tokens, width))
    for _ in range(sublayers):
        read = x / np.sqrt((x * x).mean(2, keepdims=True)) if norms else x
        x = x + read @ rng.standard_normal((draws, width, width)) * np.sqrt(GAIN / width)
    squares = (x * x).mean((1, 2))

    y = Cov(Tape(width=width), np.eye(tokens))
    y.deviations = gaussian(y)
    for _ in range(sublayers):
        y = y + linear(GAIN, normed(norm_kernels.RMSNorm(width, 0.0), y) if norms else y)
    assert y.spread == pytest.approx(np.log(squares).std(), rel=0.1)


# The pieces by hand ------------------------------------------------------------------------------


def covariance(C, deviations=None, width=4):
    x = Cov(Tape(width=width), np.array(C, float))
    if deviations is not None:
        x.deviations = {draw: np.array(size, float) for draw, size in deviations.items()}
    return x


def test_a_draw_of_weights_has_a_number_of_its_own_and_shrinks_with_the_root_of_the_width():
    tape = Tape(width=4)
    (first, size), *_ = tape.draw(36, 16).items()
    (second, _), *_ = tape.draw(1, 1).items()
    assert size.tolist() == [3, 2]
    assert first != second


def test_what_two_operands_deviate_by_adds_where_the_draw_is_the_same():
    found = summed({1: np.array([1.0, 2.0])}, {1: np.array([3.0, 4.0]), 2: np.array([5.0, 6.0])})
    assert {draw: size.tolist() for draw, size in found.items()} == {1: [4, 6], 2: [5, 6]}
    assert {d: s.tolist() for d, s in scaled(2.0, found).items()} == {1: [8, 12], 2: [10, 12]}


def test_the_product_of_gram_matrices_counts_what_both_deviate_by_together():
    x = covariance([[2, 1], [1, 2]], {1: [9, 0.5], 2: [9, 7]})
    y = covariance([[1, 3], [3, 1]], {1: [9, 4], 3: [9, 7]})
    assert overlap(x, y) == (2 + 3 + 3 + 2) / 4 + 0.5 * 4
    assert overlap(x, covariance([[1, 3], [3, 1]])) == 2.5


def test_features_drawn_of_a_covariance_deviate_as_those_of_a_normal_law():
    x = covariance([[2, 1], [1, 4]], {}, width=100)
    (mean, pair), *_ = gaussian(x).values()
    both = (4 + 1 + 1 + 16) / 4
    assert (mean, pair) == pytest.approx((np.sqrt(2 * both / 100), np.sqrt((9 + both) / 100)))


def test_a_sum_deviates_by_both_and_by_their_product():
    x = covariance(np.eye(2), {7: [1, 2]}, width=100)
    y = Cov(x.tape, 2 * np.eye(2))
    y.deviations = {7: np.array([3.0, 4.0])}
    found = (x + y).deviations
    both = 1 + 2 * 4
    assert found[7].tolist() == [4, 6]
    (cross,) = (size for draw, size in found.items() if draw != 7)
    assert cross**2 * 100 == pytest.approx([4 * both, 2 * 2 + 2 * both])


def test_a_spread_is_relative_and_adds_draws_in_squares():
    assert covariance(2 * np.eye(2), {1: [3, 9], 2: [4, 9]}).spread == 2.5
    assert np.isnan(covariance(np.eye(2)).spread)
    assert np.isnan(covariance(0 * np.eye(2), {1: [1, 1]}).spread)
    assert np.isnan(covariance(np.eye(2), {1: [np.inf, 1]}).spread)


def test_a_factor_scales_variance_gradient_and_what_is_kept_by_its_power():
    x = covariance(C, {1: [1, 2]})
    x.embedding_factor, x.norm_share, x.last_norm = np.ones(2), np.array([0.5, 0.25]), covariance(C)
    y = 3.0 * x
    y.G = G
    x.tape.reverse()
    assert np.array_equal(y.C, 9 * C) and np.array_equal(x.G, 9 * G)
    assert (
        y.embedding_factor.tolist() == [3, 3]
        and y.norm_share.tolist() == [0.5, 0.25]
        and y.last_norm is x.last_norm
    )
    assert y.deviations[1].tolist() == [9, 18]


def test_the_share_of_the_stem_is_that_of_its_variance():
    x = Cov(Tape(), np.diag([3.0, 0.0]))
    x.last_norm, x.norm_share = x, np.ones(2)
    y = Cov(x.tape, np.diag([1.0, 0.0]))
    for both in (x + y, y + x):
        assert both.last_norm is x
        assert both.norm_share.tolist() == [0.75, 0]


def test_gradients_of_all_uses_of_an_operand_add():
    x = covariance(C)
    a, b = linear(GAIN, x), linear(2 * GAIN, x)
    y = a + b
    y.G = G
    x.tape.reverse()
    assert pytest.approx(3 * GAIN * G) == x.G


def test_a_norm_under_a_later_one_takes_nothing_off_the_gradient():
    """E[1/sigma^2] and the way back make 1 + (1 - h^2)/d of it, in place of 1 - 1/d."""
    d, share = 50, np.array([0.5, 1.0])
    C = np.diag([4.0, 9.0])
    x = covariance(C, width=d)
    norm = norm_kernels.RMSNorm(d, 0.0)
    y = normed(norm, x)
    x.norm_share = share
    y.feeds_norm = True
    y.G = np.eye(2)
    x.tape.reverse()
    gain = 1 + (2 - share**2) / d
    assert np.diagonal(x.G) == pytest.approx((1 - 1 / d) * gain / np.diagonal(C))


def test_the_last_norm_takes_off_what_lies_along_its_output():
    d = 50
    x = covariance(np.diag([4.0, 9.0]), width=d)
    y = normed(norm_kernels.RMSNorm(d, 0.0), x)
    y.G = np.diag([1.0, 2.0])
    y.radial = np.array([0.0, 20.0])  # the first has no gradient along xhat, the second 10 of d
    x.tape.reverse()
    assert np.diagonal(x.G) == pytest.approx([1 / 4, 2 / 9 * (1 - 10 / d)])


def test_a_norm_holds_the_stem_that_reaches_it_and_starts_one():
    x = covariance(C)
    norm = norm_kernels.LayerNorm(50, 0.0)
    first = normed(norm, x)
    assert first.last_norm is first and first.norm_share.tolist() == [1, 1] and not first.feeds_norm
    normed(norm, first + linear(GAIN, first))
    assert first.feeds_norm
    batchnorm = normed(norm_kernels.BatchNorm(50, 1e-5), x)
    batchnorm.feeds_norm, batchnorm.G = True, G
    x.tape.reverse()
    assert pytest.approx(norm_kernels.BatchNorm(50, 1e-5)(C)[1](G)) == x.G


def test_a_norm_keeps_the_directions_that_deviate_and_loses_the_size():
    x = covariance(2 * np.eye(2), {1: [5, 3]})
    assert normed(norm_kernels.RMSNorm(4, 0.0), x).deviations[1].tolist() == [0, 1.5]
    assert (
        normed(norm_kernels.RMSNorm(4, 1.0), covariance(0 * np.eye(2), {1: [5, 3]})).deviations
        == {}
    )


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda x: x - x, "no __sub__"),
        (lambda x: 1 - x, "no __rsub__"),
        (lambda x: x / 2, "no __truediv__"),
        (lambda x: x**2, "no __pow__"),
        (lambda x: x[:, :1], "no __getitem__"),
        (lambda x: x > 0, "no __gt__"),
        (lambda x: sum([x]), "no __radd__"),
        (lambda x: x + 1.0, "cannot add float"),
        (lambda x: x * x, "cannot multiply Cov"),
        (lambda x: x.clamp(-1, 1), "no clamp"),
        (torch.tanh, "no tanh"),
        (lambda x: torch.ones(2) * x, "no mul"),
        (lambda x: torch.nn.functional.linear(x, torch.ones(2, 2)), "no linear"),
    ],
)
def test_an_operation_that_covariances_lack_has_no_theory(use, reason):
    with pytest.raises(NoTheory, match=reason):
        use(covariance(np.eye(2)))


def test_a_scalar_of_numpy_multiplies_a_covariance():
    x = np.float64(3) * covariance(np.eye(2))
    assert np.array_equal(x.C, 9 * np.eye(2))
    assert not hasattr(x, "__no_such_protocol__")
