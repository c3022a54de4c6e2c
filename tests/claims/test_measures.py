"""What all measures have in common."""

import inspect

import pytest

from measure_rows import joined, reason, rows, runs, stream
from stability.claims import yaml_types
from stability.claims.measures import Unmeasured, measures
from stability.claims.measures._rows import by_depth, gain


@pytest.mark.parametrize("name", sorted(measures()))
def test_every_measure_says_what_it_measures_and_reads_a_table(name):
    measure = measures()[name]
    assert inspect.getdoc(measure.function)
    assert measure.tables


@pytest.mark.parametrize("name", sorted(measures()))
def test_a_claim_can_give_every_setting_of_a_measure(name):
    for parameter in measures()[name].settings.values():
        assert yaml_types.of_type(parameter.annotation)
    assert measures()[name].gives_text == name.startswith(("first_overflow", "first_bad_place"))


def test_by_depth_gives_each_depth_the_rows_of_its_own_run():
    layers = rows({"run": "a"}, {"run": "b"}, {"run": "a"}, {"run": "c"})
    found = by_depth(layers, runs({"run": "a", "depth": 24}, {"run": "b", "depth": 6}))
    assert list(found) == [6, 24]
    assert found[6]["run"].tolist() == ["b"]
    assert found[24]["run"].tolist() == ["a", "a"]


def test_two_runs_at_one_depth_are_not_compared_over_depth():
    layers = joined([stream([1.0, 2.0, 3.0], run=run) for run in "ab"])
    same = runs({"run": "a", "depth": 6}, {"run": "b", "depth": 6})
    assert reason("increment_over_depth", layers=layers, runs=same).startswith("several runs at")


def test_a_measure_of_one_run_refuses_two_and_none():
    two = joined([stream([1.0, 2.0, 3.0], run=run) for run in "ab"])
    assert reason("last_over_first", layers=two) == "2 runs in one seed: name their axis under over"
    none = stream([1.0, 2.0, 3.0], kind="grad")
    assert reason("last_over_first", layers=none) == "no act at resid_post"


def test_the_gain_is_that_of_the_runs_own_init():
    assert gain(runs().iloc[0], "linear") == pytest.approx(0.5)
    lecun = {"init.build._target_": "stability.parts.inits.LeCun", "init.build.std": None}
    assert gain(runs(lecun).iloc[0], "linear") == pytest.approx(1.0)
    scaled = {**lecun, "init.build._target_": "stability.parts.inits.GPT2"}
    assert gain(runs(scaled).iloc[0], "mlp_out") == pytest.approx(50 * 0.02**2 / 3)
    both = {**scaled, "model.sublayers": "attn_mlp"}
    assert gain(runs(both).iloc[0], "mlp_out") == pytest.approx(50 * 0.02**2 / 6)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model.width": None}, "no model.width"),
        ({"init.build._target_": None}, "no init.build"),
        ({"init.build.std": -1.0}, "std must be >= 0"),
        ({"init.build._target_": "os.system"}, "os.system"),
    ],
)
def test_a_run_whose_init_is_not_known_has_no_gain(change, why):
    with pytest.raises(Unmeasured, match=why):
        gain(runs(change).iloc[0], "linear")
