"""What identifies a row is always there; what was measured may be unknown."""

import pytest

from stability.results import schema
from stability.results.parquet import Writer, run_metadata
from stability.results.statistics import FIELDS

IDENTIFY = {
    "layers": schema.LAYER_KEY,
    "steps": ("run", "step"),
    "probes": ("run", "step", "layer", "sublayer", "probe"),
}


def test_every_table_has_columns_that_identify_its_rows():
    assert set(IDENTIFY) == set(schema.TABLES)


@pytest.mark.parametrize("table", schema.TABLES)
def test_only_what_identifies_a_row_or_counts_in_every_tensor_must_be_there(table):
    required = {column.name for column in schema.TABLES[table] if column.required}
    always = {field.name for field in FIELDS if field.required} if table == "layers" else set()
    assert required - always == set(IDENTIFY[table])
    assert {field.name for field in FIELDS if field.is_count} >= always


@pytest.mark.parametrize("table", schema.TABLES)
def test_names_of_columns_are_distinct_and_explained(table):
    columns = schema.TABLES[table]
    assert len({column.name for column in columns}) == len(columns)
    assert all(column.doc for column in columns)


def test_a_row_without_what_identifies_it_is_refused_and_one_without_a_number_is_not(tmp_path):
    row = {"run": ["r"], "step": [0]} | {
        column.name: [None] for column in schema.STEPS if not column.required
    }
    for name in ("run", "step"):
        writer = Writer(tmp_path / name, "steps", run_metadata({}, "r"))
        with pytest.raises(ValueError, match=name):
            writer.append(row | {name: [None]})
            writer.flush()
    writer = Writer(tmp_path / "whole", "steps", run_metadata({}, "r"))
    writer.append(row)
    writer.flush()


def test_a_finished_run_has_a_status_that_runs_may_have():
    assert set(schema.FINISHED) < set(schema.STATUSES)
