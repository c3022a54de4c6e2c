"""Gradient norm, layer by step."""

import math
from pathlib import Path
from statistics import geometric_mean

import pytest

from figure_checks import of_variant, seeds_of, values_at
from stability.figures import gradient_map
from synthetic import numbers


def test_the_map_holds_every_recorded_step(sweep: Path) -> None:
    rows = numbers(sweep, gradient_map)
    assert set(of_variant(rows, "pre", 4)["step"]) == {0, 20, 40}
    where = {"layer": 0, "sublayer": "mlp", "site": "resid_post", "kind": "grad"}
    mean = geometric_mean(values_at(seeds_of(sweep, "pre", 4), "rms", 20, **where)) * math.sqrt(
        512 * 64
    )
    assert of_variant(rows, "pre", 4, step=20, x=1)["value"].item() == pytest.approx(mean)
