"""A batch depends on data, seed and step alone; a source's hash and entropies are its tokens'."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from stability.parts.batches import IGNORED, Source


class Counted(Source):
    """0, 1, 2, ...: a token says where it stands."""

    vocab, pad = 1001, 1000

    def __init__(self) -> None:
        self.train, self.val = np.arange(900), np.arange(900, 1000)


def same(one, other) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_batch_depends_on_data_seed_and_step_alone():
    first = Counted().batch(7, 4, 16, seed=3)
    other = Counted()
    for step in (0, 5, 2, 8):  # whatever was asked before
        other.batch(step, 4, 16, seed=3)
    np.random.default_rng(0)
    assert same(other.batch(7, 4, 16, seed=3), first)
    assert not same(other.batch(8, 4, 16, seed=3), first)
    assert not same(other.batch(7, 4, 16, seed=4), first)


def test_a_target_is_the_token_that_follows():
    for batch in (Counted().batch(0, 5, 16, seed=0), Counted().val_batch(0, 5, 16)):
        x, y = batch
        assert x.shape == y.shape == (5, 16)
        assert x.dtype == y.dtype == np.int64
        assert (y == x + 1).all()
        assert (np.diff(x) == 1).all()


def test_batches_reach_every_window_and_stay_inside_their_split():
    counted = Counted()
    starts = np.concatenate([counted.batch(t, 100, 8, seed=0)[0][:, 0] for t in range(200)])
    assert starts.min() == 0
    assert starts.max() == 900 - 8 - 1
    assert len(set(starts.tolist())) == 900 - 8
    x, y = counted.val_batch(3, 50, 8)
    assert x.min() >= 900
    assert y.max() <= 999


def test_validation_batches_are_always_the_same_and_differ_from_each_other():
    assert same(Counted().val_batch(1, 4, 8), Counted().val_batch(1, 4, 8))
    assert not same(Counted().val_batch(1, 4, 8), Counted().val_batch(2, 4, 8))


def test_a_context_as_long_as_the_data_allows_works():
    assert Counted().val_batch(0, 3, 99)[1].max() == 999


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7])
def test_the_mean_share_of_padding_is_what_was_asked_for(share):
    counted = Counted()
    padded = [counted.batch(t, 64, 64, 0, share)[1] == IGNORED for t in range(100)]
    lengths = np.concatenate(padded).sum(1)
    assert np.mean(lengths) / 64 == pytest.approx(share, abs=0.01)
    assert lengths.std() > 3  # sequences differ, as real ones do


def test_padding_is_at_the_end_shows_the_pad_symbol_and_leaves_a_token():
    x, y = Counted().batch(0, 200, 16, 0, 0.9)
    padding = y == IGNORED
    assert (x[padding] == 1000).all()
    assert (x[~padding] != 1000).all()
    assert (np.diff(padding.astype(int)) >= 0).all()
    assert not padding[:, 0].any()
    without = Counted().batch(0, 200, 16, 0)
    assert np.array_equal(without[0][~padding], x[~padding])  # the same windows


def test_entropies_are_those_of_direct_counts():
    found = Counted()
    found.train = np.array([0, 1, 1, 2, 0, 1, 0, 2, 2, 1, 0])
    tokens = found.train.tolist()
    unigram = -sum(n / 11 * math.log(n / 11) for n in Counter(tokens).values())
    pairs, firsts = Counter(pairwise(tokens)), Counter(tokens[:-1])
    bigram = -sum(n / 10 * math.log(n / firsts[a]) for (a, _), n in pairs.items())
    assert found.entropies == pytest.approx((unigram, bigram))


def test_the_hash_tells_tokens_and_splits_apart():
    one, other, moved = Counted(), Counted(), Counted()
    assert one.sha256 == other.sha256
    other.train = other.train[::-1]
    moved.train, moved.val = np.arange(901), np.arange(901, 1000)
    del other.__dict__["sha256"]
    assert len({one.sha256, other.sha256, moved.sha256}) == 3
