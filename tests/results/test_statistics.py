"""Vectors of statistics become columns: what was not measured is null, and null is not NaN."""

import math

import numpy as np
import pytest

from stability.results import schema, statistics
from stability.results.statistics import FIELDS, INDEX, columns

MEASURED = {
    "numel": 10.0,
    "nonfinite": 2.0,
    "zeros": 1.0,
    "subnormal": 0.0,
    "near_max": 3.0,
    "absmax": 4.0,
    "mean": 0.5,
    "var": 2.0,
    "rms": 4.0,
    "absmean": 6.0,
    "first_share": 1.0,
    "token_rms_median": 3.0,
    "lost": 5.0,
}
"""A vector by name: the finite entries are 8, relative to 4; the tokens' median rms is 3."""


def vector(**changes: float) -> np.ndarray:
    numbers = MEASURED | changes
    return np.array([numbers[name] for name in sorted(INDEX, key=INDEX.__getitem__)])


def row(divisor: float = 1.0, **changes: float) -> dict[str, float | None]:
    found = columns(vector(**changes)[None], divisor)
    return {k: None if v[0] is np.ma.masked else v[0].item() for k, v in found.items()}


def test_each_column_is_made_from_the_vector_by_its_formula():
    assert row() == {
        "numel": 10,
        "mean": 4 * 0.5,
        "var": 4**2 * 2 / 8,
        "rms": 4 * math.sqrt(4 / 8),
        "absmax": 4,
        "absmean": 4 * 6 / 8,
        "first_share": 1 / 4,
        "token_rms_median": 3,
        "nonfinite": 2,
        "zeros": 1,
        "subnormal": 0,
        "near_max": 3,
        "lost": 5,
    }


def test_the_loss_scale_divides_values_and_neither_counts_nor_shares():
    one, scaled = row(), row(divisor=8.0)
    powers = {"var": 2} | dict.fromkeys(("mean", "rms", "absmax", "absmean", "token_rms_median"), 1)
    for name, number in one.items():
        assert scaled[name] == number / 8.0 ** powers.get(name, 0), name


@pytest.mark.parametrize("name", ["first_share", "token_rms_median", "lost"])
def test_what_was_not_measured_is_null(name):
    found = row(**{name: math.nan})
    assert found[name] is None
    assert None not in (value for key, value in found.items() if key != name)


def test_where_nothing_is_finite_every_value_is_nan_and_no_count_is():
    nothing = dict.fromkeys((*statistics.VALUES, "first_share", "token_rms_median"), 0.0)
    found = row(nonfinite=10.0, **nothing)
    assert all(math.isnan(found[f.name]) for f in FIELDS if not f.is_count)
    assert found["nonfinite"] == found["numel"] == 10


def test_one_finite_entry_is_enough_for_every_value():
    alone = {"mean": -1.0, "var": 0.0, "rms": 1.0, "absmean": 1.0, "first_share": 1.0}
    for nonfinite in (0.0, 4.0):
        found = row(numel=1.0 + nonfinite, nonfinite=nonfinite, **alone)
        values = {f.name: found[f.name] for f in FIELDS if not f.is_count}
        sizes = dict.fromkeys(("rms", "absmax", "absmean"), 4)
        wanted = {"mean": -4, "var": 0, "first_share": 1, "token_rms_median": 3} | sizes
        assert values == wanted


def test_of_a_tensor_without_entries_values_are_null_and_counts_zero():
    found = row(**dict.fromkeys(MEASURED, 0.0))
    assert {found[f.name] for f in FIELDS if not f.is_count} == {None}
    assert {found[f.name] for f in FIELDS if f.is_count} == {0}


def test_counts_keep_every_integer_below_2_to_the_53():
    assert row(numel=2.0**53 - 1)["numel"] == 2**53 - 1
    assert columns(vector()[None])["numel"].dtype == np.int64


def test_the_layers_table_has_the_fields_in_their_order_after_its_keys():
    names = [c.name for c in schema.LAYERS]
    assert names[-len(FIELDS) :] == [f.name for f in FIELDS] == list(columns(vector()[None]))
    assert [c.type for c in schema.LAYERS if c.name in INDEX] == [f.type for f in FIELDS]
    assert [c.name for c in schema.LAYERS if c.required and c.name in INDEX] == ["numel"]


def test_every_field_has_a_place_of_its_own_in_the_vector():
    assert sorted(INDEX.values()) == list(range(len(FIELDS)))
