"""Criteria: how they are read, and the verdict of numbers and texts by them."""

import math

import pytest

from stability.claims import criterion
from stability.claims.criterion import judge
from stability.claims.verdict import FAILS, HOLDS, INCONCLUSIVE, NOT_MEASURED, REPORTED
from stability.claims.yaml_types import BadClaim


@pytest.mark.parametrize(
    ("values", "stated", "expected"),
    [
        ([0.6] * 5, {"at_least": 0.5, "fails": {"at_most": 0.1}}, HOLDS),
        ([0.3] * 5, {"at_least": 0.5, "fails": {"at_most": 0.1}}, INCONCLUSIVE),
        ([-2.0] * 5, {"at_least": 0.5, "fails": {"at_most": 0.1}}, FAILS),
        ([1.0] * 5, None, REPORTED),
        (["a"] * 5, {"is": "a"}, HOLDS),
        (["a", "b"] * 3, {"is": "a"}, INCONCLUSIVE),
        (["b"] * 5, {"is": "a"}, FAILS),
        (["b", "c"] * 3, {"is": "a"}, FAILS),
        (["b"] * 5, None, REPORTED),
        (["a"] * 4, {"is": "a"}, NOT_MEASURED),
        ([1.0] * 5, {"between": [1, 1]}, HOLDS),
        ([1.0] * 5, {"at_least": 1}, HOLDS),
        ([1.0] * 5, {"at_most": 1}, HOLDS),
        ([1.0] * 5, {"at_least": 1.5}, FAILS),
        ([1.0] * 5, {"at_most": 0.5}, FAILS),
        ([1.0] * 5, {"between": [0, 0.5]}, FAILS),
        ([1.0] * 5, {"between": [1.5, 2]}, FAILS),
        ([0.1] * 5, {"at_least": 0.5, "fails": {"at_most": 0.1}}, FAILS),
        ([0.5, 1.5] * 3, {"at_least": 1}, INCONCLUSIVE),
        ([0.5, 1.5] * 3, {"at_most": 1}, INCONCLUSIVE),
        ([0.5, 1.5] * 3, {"between": [0.9, 1.1]}, INCONCLUSIVE),
        ([0.5, 1.5] * 3, {"at_least": 3, "fails": {"at_most": 1}}, INCONCLUSIVE),
        ([1.0] * 4, {"at_least": 0}, NOT_MEASURED),
    ],
)
def test_a_criterion_is_judged_by_the_whole_interval(values, stated, expected):
    assert judge(values, criterion.read_criterion("criterion", stated)).verdict == expected


@pytest.mark.parametrize(
    ("true", "seeds", "stated", "expected"),
    [
        (5, 5, {"at_least": 1}, HOLDS),
        (14, 20, {"at_least": 1}, FAILS),
        (19, 20, {"at_least": 1}, FAILS),
        (10, 10, {"at_least": 0.5}, HOLDS),
        (5, 5, {"at_least": 0.5}, INCONCLUSIVE),
        (0, 10, {"at_least": 0.5}, FAILS),
        (4, 4, {"at_least": 1}, NOT_MEASURED),
        (3, 5, None, REPORTED),
    ],
)
def test_what_is_true_of_seeds_is_judged_by_their_share(true, seeds, stated, expected):
    values = [n < true for n in range(seeds)]
    found = judge(values, criterion.read_criterion("criterion", stated))
    assert found.verdict == expected
    if seeds > 4:
        assert (found.value, found.true_of) == (true / seeds, true)
        assert 0 <= found.low <= found.value <= found.high <= 1
        assert found.low < found.high


def test_a_geometric_mean_has_its_interval_on_the_logarithm():
    found = judge([1e-5, 1e-4, 1e-3, 1e-4, 1e-4], None, geometric=True)
    assert found.value == pytest.approx(1e-4)
    assert found.low * found.high == pytest.approx(1e-8)
    assert found.low > 0


def test_an_interval_is_at_the_level_that_is_asked_for():
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    narrow, wide = judge(values, None, 0.5), judge(values, None, 0.99)
    half = math.sqrt(2.5 / 5)  # the standard error; t(4) is 0.7407 at 50% and 4.6041 at 99%
    assert (narrow.low, narrow.high) == pytest.approx((3 - 0.7407 * half, 3 + 0.7407 * half), 1e-4)
    assert (wide.low, wide.high) == pytest.approx((3 - 4.6041 * half, 3 + 4.6041 * half), 1e-4)


def test_too_few_seeds_still_have_a_mean_and_say_how_many_they_are():
    found = judge([1.0, 2.0, 6.0], None)
    assert (found.verdict, found.value, found.low, found.high) == (NOT_MEASURED, 3.0, None, None)
    assert found.reason == "3 seeds, at least 5 are needed"
    assert judge(["a"], None).value is None
    assert judge([], None).value is None


def test_texts_are_listed_with_their_number_of_seeds_where_they_differ():
    assert judge(["a"] * 5, None).value == "a"
    assert judge(["a", "b", "a", "a", "b"], None).value == "a (3); b (2)"


@pytest.mark.parametrize(
    ("stated", "printed", "ends"),
    [
        ({"between": [0.9, 1.1]}, "0.9 to 1.1", (0.9, 1.1)),
        ({"at_least": 3}, ">= 3", (3, math.inf)),
        ({"at_most": 1e-05}, "<= 1e-05", (-math.inf, 1e-5)),
        ({"at_least": 0.5, "fails": {"at_most": 0.1}}, ">= 0.5, fails <= 0.1", (0.5, math.inf)),
        ({"is": "attn scores"}, "attn scores", None),
    ],
)
def test_a_criterion_prints_itself_and_knows_the_range_it_admits(stated, printed, ends):
    found = criterion.read_criterion("criterion", stated)
    assert str(found) == printed
    assert (found.admits and (found.admits.low, found.admits.high)) == ends


def test_numbers_are_not_judged_by_a_text_nor_texts_by_a_range():
    with pytest.raises(TypeError, match="number"):
        judge([1.0] * 5, criterion.read_criterion("criterion", {"is": "a"}))
    with pytest.raises(TypeError, match="text"):
        judge(["a"] * 5, criterion.read_criterion("criterion", {"at_least": 1}))


@pytest.mark.parametrize(
    "stated",
    [
        *({}, {"between": [2, 1]}, {"at_least": "x"}, {"above": 1}, {"between": [1]}),
        *({"at_least": True}, {"between": 1}, {"between": [1, 2, 3]}, {"at_least": math.nan}),
        *({"at_least": 1, "at_most": 2}, {"fails": {"at_most": 1}}, {"is": 3}, {"is": ""}),
        *({"at_least": 1, "fails": {}}, {"at_least": 1, "fails": 3}, 5, "at_least"),
    ],
)
def test_a_criterion_that_says_nothing_is_refused(stated):
    with pytest.raises(BadClaim):
        criterion.read_criterion("criterion", stated)
