"""The pieces of the recursion that have exact values: stds, embedding, loss gradient, groups."""

import numpy as np
import pytest

import tiny
from stability.model import build
from stability.theory.covariance import Tape
from stability.theory.recursion import (
    MAX_TOKENS,
    MAX_TOKENS_ATTENTION,
    Net,
    TokenGroup,
    _heads,
    _loss_gradient,
    groups,
)

VOCAB = 97


def config_of(changes=None, **choices):
    return tiny.make_config({"model.width": 64, "model.heads": 4} | (changes or {}), **choices)


def batch_of(token, target, T):
    N = len(token)
    mask = np.tri(N, dtype=bool)
    counted = max(int((np.array(target) >= 0).sum()), 1)
    return TokenGroup(np.array(token), np.array(target), np.arange(N) % T, mask, counted)


@pytest.mark.parametrize("norm", ["pre", "deepnorm"])
@pytest.mark.parametrize("init", ["gpt2", "xavier", "lecun"])
@pytest.mark.parametrize(
    "changes",
    [
        {"activation": "swiglu", "model.mlp_ratio": 2.5},
        {"model.sublayers": "linear"},
        {"model.sublayers": "mlp", "model.tie_embeddings": False},
    ],
    ids=str,
)
def test_the_gain_of_each_weight_is_that_of_the_model(norm, init, changes):
    config = config_of(changes, norm=norm, init=init)
    net, model = Net(config, VOCAB), build.model_of(config, VOCAB)
    for (layer, sublayer, name), weight in model.weights().items():
        role = name.removesuffix(".weight")
        if sublayer in net.names and weight.ndim == 2:
            gain = net.gains(sublayer, layer, net.placement(layer, sublayer))[role]
            fan_in = weight.shape[1]
            assert gain == pytest.approx(fan_in * weight.square().mean().item(), rel=0.15), role
        elif role == "head":
            std = net.std(role, (64, VOCAB), layer, None)
            assert std == pytest.approx(weight.std().item(), rel=0.15)


@pytest.mark.parametrize(
    ("position", "wanted"),
    [
        ("learned", [[2, 0, 1, 1], [0, 2, 0, 1], [1, 0, 2, 0], [1, 1, 0, 2]]),
        ("none", [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]]),
    ],
)
def test_tokens_share_what_their_symbol_and_their_position_draw(position, wanted):
    config = config_of({"model.position": position, "init.embed_std": 0.5})
    x = Net(config, VOCAB)._embed(Tape(width=64), batch_of([3, 5, 4, 3], [0] * 4, 2))
    assert np.array_equal(x.C, 0.25 * np.array(wanted))
    assert np.array_equal(x.embedding_factor, np.ones(4))
    assert x.spread > 0


def test_without_logits_the_gradient_is_the_uniform_guess_minus_the_target():
    batch = batch_of([0, 1, 2], [4, -100, 5], 3)
    found, along = _loss_gradient(
        np.zeros((3, 3)), np.zeros(3), batch, VOCAB, np.random.default_rng(0)
    )
    E = np.full((3, VOCAB), 1 / VOCAB)
    E[0, 4] -= 1
    E[1] = 0
    E[2, 5] -= 1
    np.testing.assert_allclose(found, E @ E.T, atol=1e-12)
    np.testing.assert_allclose(along, 0, atol=1e-12)


def test_a_sure_guess_of_the_own_symbol_is_taken_back_and_the_target_asked_for():
    batch = batch_of([0, 1], [4, 1], 2)
    own = np.array([50.0, 50.0])
    found, along = _loss_gradient(np.zeros((2, 2)), own, batch, VOCAB, np.random.default_rng(0))
    np.testing.assert_allclose(found, [[2, 0], [0, 0]], atol=1e-12)
    np.testing.assert_allclose(along, [2500, 0], atol=1e-9)


def test_the_gradient_averages_over_logits_of_the_given_covariance():
    C = np.array([[0.5, 0.2], [0.2, 1.0]])
    batch = batch_of([0, 1], [4, 5], 2)
    found, along = _loss_gradient(C, np.zeros(2), batch, 7, np.random.default_rng(0))
    logits = np.random.default_rng(1).multivariate_normal([0, 0], C, size=(40_000, 7))
    P = np.exp(logits)
    P /= P.sum(1, keepdims=True)
    P[:, 4, 0] -= 1
    P[:, 5, 1] -= 1
    np.testing.assert_allclose(found, np.einsum("svi,svj->ij", P, P) / 40_000, rtol=0.03)
    np.testing.assert_allclose(along, ((P * logits).sum(1) ** 2).mean(0), rtol=0.05)


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_starts_the_way_back_from_the_mean_over_tokens_that_count(tied):
    config = config_of(
        {"model.tie_embeddings": tied, "init.embed_std": 1e-9, "depth": 1}, init="normal"
    )
    config.init.build["std"] = 0.0 if tied else 1e-9
    batch = batch_of([0, 1, 2, 3], [4, -100, 4, 5], 4)
    sites = {site.key: site for site in Net(config, VOCAB).run(batch, seed=0)}
    assert list(sites)[-1] == (1, "head", "branch_out")
    logits = sites[1, "head", "branch_out"]
    assert logits.width == VOCAB
    alone = (1 - 1 / VOCAB) / VOCAB / 3**2
    np.testing.assert_allclose(np.diagonal(logits.x.G), alone * np.array([1, 0, 1, 1]), rtol=1e-6)


def test_the_sites_of_a_net_come_in_the_order_of_the_pass():
    net = Net(config_of({"depth": 2, "model.sublayers": "mlp"}), VOCAB)
    keys = [site.key for site in net.run(batch_of([0, 1, 2], [1, 2, 3], 3), seed=0)]
    names = ("resid_pre", "branch_in", "branch_out", "resid_post")
    inner = [(layer, "mlp", name) for layer in range(2) for name in names]
    head = [(2, "head", name) for name in names[:3]]
    assert keys == [(-1, "embed", "resid_post"), *inner, *head]


@pytest.mark.parametrize(("tokens", "heads"), [(8, 32), (64, 32), (128, 8), (181, 4), (4096, 4)])
def test_fewer_heads_are_sampled_where_tokens_are_many(tokens, heads):
    assert _heads(tokens) == heads


@pytest.mark.parametrize("causal", [True, False])
def test_sequences_run_alone_or_meet_where_a_norm_joins_them(causal):
    x = np.arange(12).reshape(3, 4)
    y = np.where(x % 5, x - 1, -100)  # a target of 0 counts
    alone = groups(x, y, causal, joint=False)
    assert [b.token.tolist() for b in alone] == x.tolist()
    assert [b.target.tolist() for b in alone] == y.tolist()
    assert all(b.counted == 9 and b.position.tolist() == [0, 1, 2, 3] for b in alone)
    inside = np.tri(4, dtype=bool) if causal else np.ones((4, 4), dtype=bool)
    assert all(np.array_equal(b.mask, inside) for b in alone)
    (whole,) = groups(x, y, causal, joint=True)
    assert whole.token.tolist() == x.ravel().tolist()
    assert whole.position.tolist() == [0, 1, 2, 3] * 3
    assert np.array_equal(whole.mask, np.kron(np.eye(3), inside).astype(bool))


def test_the_most_tokens_are_what_the_page_of_the_theory_says():
    assert (MAX_TOKENS, MAX_TOKENS_ATTENTION) == (512, 256)


def test_what_is_beyond_the_most_tokens_is_left_out_and_one_sequence_always_stays():
    half = MAX_TOKENS // 2
    for T, kept in ((half, 2), (half + 1, 1), (MAX_TOKENS + 1, 1)):
        x = np.zeros((3, T), dtype=np.int64)
        assert len(groups(x, x - 1, True, joint=False)) == kept
        (whole,) = groups(x, x - 1, True, joint=True)
        assert len(whole.token) == kept * T
        assert whole.counted == 1  # none counts: the loss is a sum of nothing


@pytest.mark.parametrize("norm", ["none", "pre"])
def test_a_tied_table_raises_the_logit_of_the_own_symbol(norm):
    """Without branches x_L is the embedding, normed in Pre-LN."""
    changes = {"model.position": "none", "init.embed_std": 0.5, "depth": 1}
    config = config_of(changes, norm=norm, init="normal", norm_type="rmsnorm")
    config.init.build["std"] = 0.0
    batch = batch_of([0, 1, 2, 0], [4, -100, 4, 5], 4)
    sites = {site.key[2]: site.x for site in Net(config, VOCAB).run(batch, seed=0)[-3:]}
    same = np.equal.outer(batch.token, batch.token)
    size, kept = (0.25, 1.0) if norm == "none" else (1.0, 2.0)
    own = 64 * 0.25 * kept
    wanted = 64 * 0.25 * size * same + np.eye(4) * own**2 / VOCAB
    np.testing.assert_allclose(sites["branch_out"].C, wanted, rtol=1e-3)
    G = VOCAB * 0.25 * sites["branch_out"].G
    np.testing.assert_allclose(sites["branch_in"].G, G, rtol=1e-12)
    if norm == "none":
        np.testing.assert_allclose(sites["resid_pre"].G, G, rtol=1e-12)
    else:
        assert len(sites["resid_pre"].G) and not np.allclose(sites["resid_pre"].G, G, rtol=0.5)


def test_logits_of_an_untied_head_have_its_own_std():
    config = config_of({"model.tie_embeddings": False, "depth": 2}, norm="none", init="lecun")
    batch = batch_of([0, 1, 2, 3], [4, -100, 4, 5], 4)
    sites = {site.key[2]: site.x for site in Net(config, VOCAB).run(batch, seed=0)[-3:]}
    np.testing.assert_allclose(sites["branch_out"].C, sites["branch_in"].C, rtol=1e-12)
    G = VOCAB / 64 * sites["branch_out"].G
    np.testing.assert_allclose(sites["branch_in"].G, G, rtol=1e-12)


@pytest.mark.parametrize("position", ["learned", "rope"])
def test_attention_has_the_heads_and_the_offsets_of_the_model(position):
    net = Net(config_of({"model.position": position}), VOCAB)
    batch = batch_of([0, 1, 2, 3], [1, 2, 3, 4], 2)
    attention = net.branch("attn", net.gains("attn", 0, net.placement(0, "attn")), batch)
    assert (attention.head_width, attention.samples) == (16, 32 if position == "learned" else 16)
    assert attention.mask is batch.mask
    if position == "learned":
        assert attention.offset is None
    else:
        wanted = [[0, -1, 0, -1], [1, 0, 1, 0], [0, -1, 0, -1], [1, 0, 1, 0]]
        assert attention.offset.tolist() == wanted
