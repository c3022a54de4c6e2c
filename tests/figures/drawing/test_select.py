"""From rows to numbers: first and last steps, common steps, centres over seeds."""

import math

import pandas as pd
import pytest

from stability.figures.drawing.select import common_steps, ends, over_seeds


def rows(*values: tuple[str, str, int, float]) -> pd.DataFrame:
    frame = pd.DataFrame(values, columns=["norm", "run", "step", "value"])
    return frame.assign(status="completed")


def test_a_step_that_fewer_than_half_of_the_seeds_recorded_is_left_out() -> None:
    """Run a diverges at step 3; run d alone goes on to step 9, and no other could have."""
    frame = rows(
        *(("pre", run, step, 1.0) for run in "abcd" for step in (0, 2)),
        *(("pre", run, 4, 1.0) for run in "bcd"),
        ("pre", "a", 3, 1.0),
        ("pre", "d", 9, 1.0),
    )
    kept = common_steps(frame, ["norm"])
    assert sorted(kept["step"].unique()) == [0, 2, 4, 9]
    assert len(kept) == 12
    assert len(common_steps(frame, [])) == len(kept)


def test_steps_are_common_to_the_seeds_of_one_variant_not_of_all() -> None:
    frame = rows(
        *(("pre", run, step, 1.0) for run in "ab" for step in (0, 2)),
        ("post", "c", 0, 1.0),
        ("post", "c", 1, 1.0),
    )
    assert len(common_steps(frame, ["norm"])) == len(frame)
    assert 1 not in set(common_steps(frame, [])["step"])


def test_ends_names_the_steps_at_which_runs_ended() -> None:
    frame = rows(
        ("pre", "a", 0, 1.0), ("pre", "a", 5, 2.0), ("pre", "b", 0, 3.0), ("pre", "b", 9, 4.0)
    )
    marked = ends(frame)
    assert list(marked["when"].cat.categories) == ["at init", "at the end\n(steps 5 to 9)"]
    assert list(marked["value"]) == [1.0, 3.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("centre", "values", "wanted"),
    [
        ("geometric", [1.0, 4.0], 2.0),
        ("geometric", [0.0, 4.0], 0.0),
        ("median", [1.0, 4.0], 2.5),
        ("geometric", [3.0, math.nan], 3.0),
    ],
)
def test_the_centre_over_seeds_counts_what_is_not_finite(
    centre: str, values: list[float], wanted: float
) -> None:
    frame = rows(*(("pre", run, 0, value) for run, value in zip("ab", values, strict=True)))
    frame.loc[1, "status"] = "diverged"
    (found,) = over_seeds(frame, ["norm"], ["step"], "value", centre).to_dict("records")
    assert found["value"] == pytest.approx(wanted)
    bad = sum(map(math.isnan, values))
    assert (found["seeds"], found["not_finite"], found["runs"], found["diverged"]) == (2, bad, 2, 1)


def test_an_entry_that_is_not_finite_counts_even_where_the_value_is() -> None:
    frame = rows(("pre", "a", 0, 1.0), ("pre", "b", 0, 1.0)).assign(nonfinite=[0, 7])
    assert over_seeds(frame, ["norm"], ["step"], "value")["not_finite"].tolist() == [1]


def test_variants_are_told_apart_by_the_axes_that_are_named() -> None:
    frame = rows(("pre", "a", 0, 1.0), ("post", "b", 0, 4.0))
    assert over_seeds(frame, ["norm"], ["step"], "value")["value"].tolist() == [4.0, 1.0]
    assert over_seeds(frame, [], ["step"], "value")["value"].tolist() == [pytest.approx(2.0)]
