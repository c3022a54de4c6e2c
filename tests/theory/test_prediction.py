"""Covariances as rows of the layers table, and which tokens run together."""

import numpy as np
import pytest

import tiny
from stability.parts.data import source
from stability.theory.covariance import Cov, Tape
from stability.theory.prediction import _cosine, _rows, _spread, _together, predict
from stability.theory.recursion import Net, SiteCovariance, TokenGroup, groups

T = 2
C = np.array([[4.0, 1.0], [1.0, 1.0]])
BATCHES = [
    TokenGroup(np.array([3, 5]), np.array([5, 6]), np.arange(T), np.tri(T, dtype=bool), 4)
    for _ in "ab"
]


def sites(factor=1.0):
    """One place of two sequences: the same C at 1 and 9 times the size, and a G."""
    found = []
    for size in (1, 9):
        x = Cov(Tape(width=10), factor * size * C)
        x.G = size * np.diag([1.0, 0.0])
        found.append(SiteCovariance(3, "mlp", "resid_pre", 10, x))
    return found


def test_a_site_becomes_a_row_of_each_kind_over_all_sequences():
    act, grad = _rows(sites(), BATCHES, tokens=8, spread=0.25)
    assert [row["kind"] for row in (act, grad)] == ["act", "grad"]
    for row in (act, grad):
        place = [row[name] for name in ("layer", "sublayer", "site", "numel")]
        assert place == [3, "mlp", "resid_pre", 80]
        assert not row["saturated"]
    assert act["var"] == (4 + 1 + 36 + 9) / 4
    assert act["rms"] == pytest.approx(np.sqrt(12.5))
    assert act["l2"] == pytest.approx(np.sqrt(12.5 * 80))
    assert act["first_share"] == 40 / 50
    assert act["token_rms_median"] == np.median([2, 1, 6, 3])
    assert act["spread"] == 0.25
    assert act["cosine"] == pytest.approx(0.5)
    assert (grad["var"], grad["first_share"], grad["token_rms_median"]) == (2.5, 1, 0.5)
    assert np.isnan(grad["spread"])


def test_only_the_gradient_of_a_saturated_site_is_marked():
    marked = sites()
    marked[0].saturated = True
    assert [row["saturated"] for row in _rows(marked, BATCHES, 8, 0.0)] == [False, True]


def test_position_0_has_its_share_of_the_smallest_squares_and_none_of_zero():
    act, _ = _rows(sites(1e-200), BATCHES, 8, 0.0)
    assert act["first_share"] == pytest.approx(0.8)
    act, _ = _rows(sites(0.0), BATCHES, 8, 0.0)
    assert act["var"] == 0 and np.isnan(act["first_share"])


def test_the_cosine_is_the_mean_over_different_tokens_of_one_sequence():
    mask = np.kron(np.eye(2), np.tri(2)).astype(bool)
    batch = TokenGroup(np.zeros(4), np.zeros(4), np.tile([0, 1], 2), mask, 4)
    rho = np.eye(4)
    rho[0, 1] = rho[1, 0] = 0.5
    rho[2, 3] = rho[3, 2] = -0.1
    rho[0, 2] = rho[2, 0] = 0.9  # tokens of two sequences
    assert _cosine(rho, batch) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("deviations", "tokens", "wanted"), [({1: 0.2}, 2, 0.08), ({1: 0.2}, 4, None), ({}, 4, 0.0)]
)
def test_a_spread_is_that_of_all_tokens_or_none_at_all(deviations, tokens, wanted):
    x = Cov(Tape(), C)
    x.deviations = {draw: np.array([size, 0]) for draw, size in deviations.items()}
    found = _spread(x, tokens)
    assert np.isnan(found) if wanted is None else found == pytest.approx(wanted)


def batch_of(changes=None, sequences=4, **choices):
    config = tiny.make_config(changes, **choices)
    return config, *source(config).batch(0, sequences, 8, 0)


@pytest.mark.parametrize(
    ("norm", "changes", "sequences", "together"),
    [
        ("none", {"model.sublayers": "linear"}, 4, True),
        ("none", {"model.sublayers": "linear"}, 1, False),  # one is all already
        ("none", {"model.sublayers": "linear"}, 65, False),  # too many tokens
        ("none", {"model.sublayers": "linear"}, 64, True),
        ("peri", {}, 32, True),
        ("peri", {}, 33, False),  # too many for attention
        ("none", {"model.sublayers": "mlp"}, 4, False),  # how far an MLP deviates is not known
    ],
)
def test_sequences_run_together_where_that_says_how_far_a_net_deviates(
    norm, changes, sequences, together
):
    config, x, y = batch_of({"depth": 1} | changes, sequences, norm=norm)
    net = Net(config, 256)
    alone = net.run(groups(x, y, True, joint=False)[0], 0)
    found = _together(net, alone, x, y)
    assert {len(site.x.C) for site in found} == {x.size if together else 8}
    assert (found is alone) is not together


@pytest.mark.parametrize("norm_type", ["layernorm", "batchnorm"])
def test_every_site_has_its_rows_and_sequences_of_their_own_randomness(norm_type, monkeypatch):
    config, x, y = batch_of({"depth": 1}, norm_type=norm_type)
    seeds = []
    run = Net.run
    monkeypatch.setattr(
        Net, "run", lambda self, batch, seed: seeds.append(seed) or run(self, batch, seed)
    )
    frame = predict(config, x, y, 256)
    assert seeds == ([0, 1, 2, 3] if norm_type == "layernorm" else [0])
    assert len(frame) == 2 * (1 + 2 * 4 + 3)
    assert not frame.duplicated(["layer", "sublayer", "site", "kind"]).any()
    assert (frame.loc[frame["sublayer"] == "embed", "numel"] == x.size * 16).all()
