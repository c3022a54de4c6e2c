"""Variance by layer: geometric means over seeds, and which of them diverged."""

import math
from pathlib import Path
from statistics import geometric_mean

import pytest

from figure_checks import of_variant, seeds_of, values_at
from stability.figures import variance
from synthetic import numbers


@pytest.mark.parametrize(("norm", "depth"), [("pre", 2), ("post", 4)])
@pytest.mark.parametrize("end", [False, True])
def test_variance_is_the_geometric_mean_over_seeds(
    sweep: Path, norm: str, depth: int, end: bool
) -> None:
    rows = numbers(sweep, variance)
    when = rows.frame["when"].cat.categories[int(end)]
    seeds = seeds_of(sweep, norm, depth)
    for _, row in of_variant(rows, norm, depth, when=when).iterrows():
        sublayer = "embed" if row["x"] == 0 else "mlp"
        where = {"layer": row["x"] - 1, "sublayer": sublayer, "site": "resid_post", "kind": "act"}
        values = values_at(seeds, "var", -1 if end else 0, **where)
        finite = [v for v in values if math.isfinite(v)]
        assert row["value"] == pytest.approx(geometric_mean(finite), rel=1e-12)
        assert row["low"] == pytest.approx(min(finite)) and row["high"] == pytest.approx(
            max(finite)
        )
        assert row["seeds"] == row["runs"] == 3
        assert row["not_finite"] == len(values) - len(finite)


def test_diverged_seeds_are_counted_and_named(sweep: Path) -> None:
    rows = numbers(sweep, variance)
    assert set(of_variant(rows, "post", 4)["diverged"]) == {1}
    assert set(of_variant(rows, "pre", 4)["diverged"]) == {0}
    figure = variance.draw(rows)
    notes = " ".join(t.get_text().replace("\n", " ") for t in figure.texts)
    assert "Post-LN, L = 4: 1 of 3 diverged" in notes
    assert "geometric mean of 3 seeds" in notes
