"""Size of an update against its weight."""

from pathlib import Path
from statistics import geometric_mean

import pytest

from figure_checks import of_variant, seeds_of, values_at
from stability.figures import update_ratio
from synthetic import numbers


def test_update_ratios_are_per_matrix(sweep: Path) -> None:
    seeds = seeds_of(sweep, "pre", 4)
    where = {"layer": 1, "site": "mlp_in"}
    update, weight = (values_at(seeds, "rms", 0, kind=k, **where) for k in ("update", "weight"))
    ratios = [u / w for u, w in zip(update, weight, strict=True)]
    rows = numbers(sweep, update_ratio)
    found = of_variant(rows, "pre", 4, when="at init", weight="mlp_in", x=2)["value"].item()
    assert found == pytest.approx(geometric_mean(ratios))
