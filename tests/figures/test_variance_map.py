"""Variance, layer by step."""

from pathlib import Path
from statistics import geometric_mean

import pytest

from figure_checks import BAD_STEP, of_variant, seeds_of, values_at
from stability.figures import variance_map
from synthetic import numbers


def test_the_map_holds_every_recorded_step(sweep: Path) -> None:
    rows = numbers(sweep, variance_map)
    assert set(of_variant(rows, "pre", 4)["step"]) == {0, 20, 40}
    where = {"layer": 0, "sublayer": "mlp", "site": "resid_post", "kind": "act"}
    mean = geometric_mean(values_at(seeds_of(sweep, "pre", 4), "var", 20, **where))
    assert of_variant(rows, "pre", 4, step=20, x=1)["value"].item() == pytest.approx(mean)


def test_a_map_leaves_out_the_last_step_of_one_diverged_seed_of_three(sweep: Path) -> None:
    assert BAD_STEP not in set(of_variant(numbers(sweep, variance_map), "post", 4)["step"])
