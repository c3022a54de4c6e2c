"""The first step and place at which two runs are not the same to the last bit."""

import math

import numpy as np
import pandas as pd
import pytest

from stability.difference.first_difference import OF_RUNS, Tables, difference, relative
from synthetic import write_run

STEPS = 21


@pytest.fixture
def tables(tmp_path):
    return Tables.read(
        write_run(tmp_path / "s", {"norm": "pre", "depth": 3}, steps=STEPS, every=10)
    )


def finals(a=(2.0, 2.5), b=(2.0, 2.5)):
    return pd.DataFrame([a, b], columns=OF_RUNS)


def changed(tables, layers=None, steps=None):
    """The tables with the changes (row, column) -> value."""
    copies = tables.layers.copy(), tables.steps.copy()
    for frame, changes in zip(copies, (layers, steps), strict=True):
        for (row, column), value in (changes or {}).items():
            frame.loc[row, column] = value
    return Tables(*copies)


def test_the_same_tables_differ_in_nothing(tables):
    found = difference(tables, changed(tables), finals())
    assert found.is_none and found.is_within(0) and found.is_within(1e-9)
    assert (found.loss, found.layers, found.largest, found.unshared) == (None, None, None, ())
    assert (found.columns["largest relative difference"] == 0).all()


def test_the_first_row_in_the_order_of_execution_counts_and_not_the_largest(tables):
    rows = tables.layers.index[tables.layers["kind"] == "act"]
    small, large = rows[3], rows[7]
    rms = tables.layers["rms"]
    other = changed(
        tables, {(small, "rms"): rms[small] * (1 + 1e-12), (large, "rms"): rms[large] * 2}
    )
    found = difference(tables, other, finals())
    place = tables.layers.loc[small]
    assert found.layers.place == (
        f"step {place.step}, layer {place.layer}, {place.sublayer}, {place.site}, act, rms"
    )
    assert found.layers.relative == pytest.approx(1e-12, rel=1e-3)
    assert found.largest.relative == pytest.approx(0.5) and found.largest.b == 2 * found.largest.a
    assert found.is_within(0.5) and not found.is_within(0.49) and not found.is_within(0)


def test_one_bit_is_a_difference(tables):
    row = tables.steps.index[5]
    next_loss = math.nextafter(tables.steps.loc[row, "loss"], math.inf)
    found = difference(tables, changed(tables, steps={(row, "loss"): next_loss}), finals())
    assert found.loss.place == "step 5, loss" and found.loss.b == next_loss
    assert not found.is_none and found.is_within(1e-15) and not found.is_within(0)


def test_zeros_of_two_signs_differ_in_bits_and_by_nothing(tables):
    row = tables.layers.index[4]
    sides = [changed(tables, {(row, "mean"): zero}) for zero in (0.0, -0.0)]
    found = difference(*sides, finals())
    assert found.layers.relative == 0 and not found.is_none and found.is_within(1e-300)


def test_two_nans_agree_and_one_is_infinitely_far_from_a_number(tables):
    row = tables.layers.index[4]
    broken = changed(tables, {(row, "rms"): math.nan})
    assert difference(broken, changed(broken), finals()).is_none
    found = difference(tables, broken, finals())
    assert found.largest.relative == math.inf and not found.is_within(1e300)


def test_each_number_is_relative_to_its_scale(tables):
    row = tables.layers.index[4]
    rms, numel = tables.layers.loc[row, ["rms", "numel"]]
    for column, by, scale in (("mean", 0.5, rms), ("zeros", 3, numel), ("first_share", 0.25, 1.0)):
        sides = [changed(tables, {(row, column): value}) for value in (0.0, by)]
        found = difference(*sides, finals())
        assert found.largest.relative == pytest.approx(by / scale), column


def test_steps_and_rows_that_only_one_has_are_a_difference_at_any_tolerance(tables):
    steps = tables.steps[tables.steps["step"] < STEPS - 1].reset_index(drop=True)
    layers = tables.layers[tables.layers["step"] < STEPS - 1].reset_index(drop=True)
    found = difference(tables, Tables(layers, steps), finals())
    assert found.unshared == ("1 steps (20) are only in A", "1 recorded steps (20) are only in A")
    assert found.largest is None and not found.is_within(1e9)
    shorter = Tables(tables.layers.drop(index=tables.layers.index[[2, 5]]), tables.steps[:-3])
    found = difference(shorter, tables, finals())
    assert found.unshared == (
        "3 steps (18 to 20) are only in B",
        "2 rows of common steps are only in B",
    )


def test_the_losses_at_the_end_count(tables):
    found = difference(tables, changed(tables), finals(b=(2.0, 3.0)))
    assert found.largest.place == "final_val_loss" and found.loss is None
    assert found.largest.relative == pytest.approx(1 / 6)


def test_rows_are_compared_whatever_the_order_of_the_file(tables):
    turned = Tables(
        tables.layers.sort_values("step", ascending=False, kind="stable"), tables.steps[::-1]
    )
    assert difference(tables, turned, finals()).is_none


@pytest.mark.parametrize(
    ("a", "b", "scale", "expected"),
    [
        (1.0, 1.5, 2.0, 0.25),
        (1.0, 1.0, 0.0, 0.0),
        (1.0, 2.0, 0.0, math.inf),
        (math.inf, math.inf, math.inf, 0.0),
        (math.inf, 1.0, math.inf, math.inf),
        (math.nan, math.nan, 1.0, 0.0),
        (math.nan, 1.0, 1.0, math.inf),
    ],
)
def test_a_relative_difference(a, b, scale, expected):
    found = relative(*(np.array([x]) for x in (a, b, scale)))
    assert found.tolist() == [expected]
