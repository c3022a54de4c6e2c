"""A batch depends on data, seed and step alone; a source's hash and entropies are its tokens'."""

import hashlib
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


def tokens_of(train, val):
    source = Source()
    source.train, source.val, source.vocab = np.array(train), np.array(val), 1 << 17
    return source


def test_tokens_that_differ_beyond_16_bits_have_different_hashes():
    small, large = tokens_of([1, 2, 3], [4]), tokens_of([1, 2 + (1 << 16), 3], [4])
    assert small.sha256 != large.sha256
    as_16_bits = np.array([1, 2, 3], "<u2").tobytes() + b"|" + np.array([4], "<u2").tobytes() + b"|"
    assert small.sha256 == hashlib.sha256(as_16_bits).hexdigest()


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


def test_symbols_that_never_come_change_no_entropy():
    dense, gaps = tokens_of([0, 1, 0, 2, 1, 0], [0]), tokens_of([5, 9, 5, 70, 9, 5], [5])
    assert gaps.entropies == pytest.approx(dense.entropies)
    assert gaps.entropies[0] == pytest.approx(math.log(6) - (3 * math.log(3) + 2 * math.log(2)) / 6)


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


def test_batches_are_the_same_in_every_release():
    """Runs of a sweep that was begun earlier are gone on with: they see the same windows."""
    counted = Counted()
    assert counted.batch(7, 4, 16, seed=3)[0][:, 0].tolist() == [662, 95, 608, 226]
    assert counted.val_batch(1, 4, 16)[0][:, 0].tolist() == [938, 925, 961, 971]
    assert (counted.batch(7, 4, 16, 3, 0.5)[1] == IGNORED).sum(1).tolist() == [7, 5, 4, 8]


def test_what_a_run_keeps_about_its_data_is_what_the_source_says():
    counted = Counted()
    unigram, bigram = counted.entropies
    assert counted.info() == {
        "sha256": counted.sha256,
        "vocab": 1001,
        "train_tokens": 900,
        "val_tokens": 100,
        "unigram_entropy": unigram,
        "bigram_entropy": bigram,
        "entropy_rate": None,
    }
    assert (unigram, bigram) == pytest.approx((math.log(900), 0))


def test_a_source_pads_with_symbol_0_where_it_names_no_other():
    class Letters(Source):
        vocab = 5

        def __init__(self) -> None:
            self.train = self.val = np.full(99, 3)

    x, y = Letters().val_batch(0, 8, 16, 0.5)
    assert set(x[y == IGNORED]) == {0}


def test_the_hash_is_that_of_the_tokens_as_little_endian_uint16():
    found = Counted()
    parts = [tokens.astype("<u2").tobytes() + b"|" for tokens in (found.train, found.val)]
    assert found.sha256 == hashlib.sha256(b"".join(parts)).hexdigest()


def test_the_longest_padding_leaves_one_token_and_the_shortest_none():
    half, most = ((Counted().batch(0, 500, 16, 0, s)[1] == IGNORED).sum(1) for s in (0.5, 0.75))
    assert {0, 15} <= set(half) <= set(range(16))
    assert most.min() == 8
