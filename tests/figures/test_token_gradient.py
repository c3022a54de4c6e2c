"""Gradient by layer and position: the numbers of the probe, and the theory beside them."""

import math
from statistics import geometric_mean

import pandas as pd
import pytest

from figure_checks import at_init
from stability.figures import token_gradient
from synthetic import POSITIONS, numbers, row_of, token_share


def test_the_map_holds_the_root_mean_square_of_each_position(token_sweep):
    frame = numbers(token_sweep, token_gradient).frame
    assert set(frame["x"]) == {1, 2, 3} and set(frame["position"]) == set(range(POSITIONS))
    seeds = [
        pd.read_parquet(f / "probes.parquet")
        for f in token_sweep.iterdir()
        if f.is_dir() and row_of(f)["norm"] == "post" and row_of(f)["model.causal"]
    ]
    here = frame[(frame["norm"] == "post") & frame["model.causal"] & (frame["when"] == "at init")]
    for _, row in here.iterrows():
        wanted = [
            math.sqrt(
                s[
                    (s["step"] == 0)
                    & (s["layer"] == row["x"] - 1)
                    & (s["sublayer"] == "mlp")
                    & (s["item"] == str(row["position"]))
                ]["value"].item()
            )
            for s in seeds
        ]
        assert len(wanted) == row["seeds"] == 2
        assert row["value"] == pytest.approx(geometric_mean(wanted))
    first = here[(here["x"] == 1)].set_index("position")["value"]
    config = {"choices": {"norm": "post"}, "depth": 3}
    ratio = token_share(config, 0, 0) / token_share(config, 0, 5)
    assert first[0] / first[5] == pytest.approx(math.sqrt(ratio))


def test_position_0_is_compared_with_the_mean_of_the_others(token_sweep):
    frame = numbers(token_sweep, token_gradient).frame
    here = frame[(frame["norm"] == "post") & frame["model.causal"] & (frame["when"] == "at init")]
    config = {"choices": {"norm": "post"}, "depth": 3}
    for x in (1, 2, 3):  # each seed has its own scale, which the ratio does not see
        sizes = [math.sqrt(token_share(config, x - 1, t)) for t in range(POSITIONS)]
        (found,) = here.loc[here["x"] == x, "first_over_others"].unique()
        assert found == pytest.approx(sizes[0] / (sum(sizes[1:]) / (POSITIONS - 1)))
    figure = token_gradient.draw(numbers(token_sweep, token_gradient))
    written = [t.get_text() for ax in figure.axes for t in ax.texts if t.get_gid() == "ratio"]
    (first,) = here.loc[here["x"] == 1, "first_over_others"].unique()
    assert f"{first:.2g}" in written and "1" in written


def test_a_ratio_is_written_only_where_the_first_block_has_one(token_sweep):
    rows = numbers(token_sweep, token_gradient)
    above = rows.with_frame(rows.frame[rows.frame["x"] > 1])
    large = rows.with_frame(rows.frame.assign(first_over_others=1234.5))
    for given, expected in ((above, set()), (large, {"1,234"})):
        figure = token_gradient.draw(given)
        found = {t.get_text() for ax in figure.axes for t in ax.texts if t.get_gid() == "ratio"}
        assert found == expected


def test_the_theory_is_a_map_beside_the_measured_one(token_sweep):
    rows = numbers(token_sweep, token_gradient)
    figure = token_gradient.draw(rows, theory=at_init(rows))
    titles = [ax.get_title() for ax in figure.axes]
    assert sum(token_gradient.PREDICTED in title for title in titles) == 2


def test_runs_that_a_theory_does_not_cover_leave_its_panels_empty(token_sweep):
    rows = numbers(token_sweep, token_gradient)
    theory = at_init(rows)
    theory = theory.with_frame(theory.frame[theory.frame["norm"] == "pre"])
    figure = token_gradient.draw(rows, theory=theory)
    texts = [text for ax in figure.axes for text in ax.texts if text.get_gid() != "ratio"]
    assert [text.get_text() for text in texts] == ["none", "none"]
