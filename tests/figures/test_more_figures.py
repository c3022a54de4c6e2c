"""Final loss against the learning rate; the gradient's norm, blocks, ratios of weights, theory."""

import math
from pathlib import Path

import numpy as np
import pytest

from figure_checks import legend_texts
from stability.figures import (
    blocks_over_steps,
    gradient_norm,
    learning_rate,
    theory_scatter,
    weight_ratio,
)
from stability.figures.drawing.select import CannotDraw
from synthetic import GRADIENT, VARIANCE, numbers, recorded, write_run, write_sweep


def test_the_final_loss_is_the_median_of_the_seeds_that_ended(tmp_path: Path) -> None:
    for lr, seed in ((1e-3, 0), (1e-3, 1), (1e-2, 0), (1e-2, 1)):
        bad = 5 if (lr, seed) == (1e-2, 1) else None
        write_run(tmp_path, {"train.lr": lr, "seed": seed}, steps=11, every=5, bad_step=bad)
    rows = recorded(tmp_path, learning_rate)
    frame = rows.frame.assign(final_val_loss=[3.0, 2.0, 1.0, math.nan])
    found = learning_rate.data(rows.with_frame(frame))
    values = found.frame.sort_values("x")
    assert list(values["x"]) == [1e-3, 1e-2]
    expected = [
        frame.loc[frame["train.lr"] == lr, "final_val_loss"].median() for lr in (1e-3, 1e-2)
    ]
    assert list(values["value"]) == pytest.approx(expected)
    assert list(values["diverged"]) == [0, 1]
    (panel,) = learning_rate.draw(found).axes
    assert panel.get_xscale() == "log"


def test_a_learning_rate_at_which_every_seed_diverged_has_a_cross(tmp_path: Path) -> None:
    for lr, bad in ((1e-3, None), (1e-1, 3)):
        write_run(tmp_path, {"train.lr": lr}, steps=11, every=5, bad_step=bad)
    figure = learning_rate.draw(numbers(tmp_path, learning_rate))
    (cross,) = (line for line in figure.axes[0].lines if line.get_gid() == "diverged")
    assert list(cross.get_xdata()) == [0.1] and "diverged" in legend_texts(figure)


def test_without_several_learning_rates_there_is_no_curve(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["pre", "post"]}, steps=3)
    with pytest.raises(CannotDraw, match="learning rate does not vary"):
        numbers(tmp_path, learning_rate)


def test_the_norm_of_the_gradient_is_drawn_at_every_step_with_its_spikes(tmp_path: Path) -> None:
    write_run(tmp_path, {"norm": "pre"}, steps=11)
    rows = recorded(tmp_path, gradient_norm)
    frame = rows.frame.assign(spike=rows.frame["step"] == 4)
    found = gradient_norm.data(rows.with_frame(frame))
    np.testing.assert_allclose(found.frame["value"], frame["grad_norm"])
    figure = gradient_norm.draw(found)
    (star,) = (line for line in figure.axes[0].lines if line.get_gid() == "*")
    assert list(star.get_xdata()) == [4] and "spike" in legend_texts(figure)


def test_five_blocks_are_followed_over_the_recorded_steps(tmp_path: Path) -> None:
    write_run(tmp_path, {"norm": "none", "depth": 9}, steps=21, every=10)
    frame = numbers(tmp_path, blocks_over_steps).frame
    names = list(frame["block"].cat.categories)
    assert names == ["first block", "L/4", "L/2", "3L/4", "last block"]
    start = frame[(frame["x"] == 0) & (frame["quantity"] == "variance")].set_index("block")["value"]
    ratios = [VARIANCE["none"](at) / VARIANCE["none"](1) for at in (1, 3, 5, 7, 9)]
    np.testing.assert_allclose(start[names] / start["first block"], ratios)
    assert sorted(frame["x"].unique()) == [0, 10, 20]


def test_the_ratio_of_weight_gradients_is_last_over_first(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["none"], "depth": [2, 8]}, steps=1)
    frame = numbers(tmp_path, weight_ratio).frame
    query = frame[frame["weight"] == "q"].set_index("x")["value"]
    for depth in (2, 8):
        expected = GRADIENT["none"](depth, depth) / GRADIENT["none"](1, depth)
        assert query[depth] == pytest.approx(expected)


def test_theory_and_measurement_are_joined_block_by_block(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["pre", "post"], "depth": [2, 4]}, steps=1)
    rows = numbers(tmp_path, theory_scatter)
    assert set(rows.frame["quantity"]) == {"variance", "all tokens", "median token"}
    assert rows.frame["x"].min() == 1
    twice = rows.with_frame(rows.frame.assign(value=rows.frame["value"] * 2))
    figure = theory_scatter.draw(rows, theory=twice)
    assert "variance 2 (largest 2)" in figure.texts[-1].get_text().replace("\n", " ")
    assert [ax.get_xscale() for ax in figure.axes] == ["log"] * 3
    with pytest.raises(CannotDraw, match="no theory"):
        theory_scatter.draw(rows)


def test_a_gradient_that_is_rounding_error_is_not_compared_with_the_theory(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["pre", "none"], "depth": [2]}, steps=1)
    rows = recorded(tmp_path, theory_scatter)
    scores = (rows.frame["site"] == "scores") & (rows.frame["norm"] == "none")
    frame = rows.frame.assign(absmax=rows.frame["absmax"].mask(scores, 1e9))
    found = theory_scatter.data(rows.with_frame(frame)).frame
    assert set(found.loc[found["quantity"] == "all tokens", "norm"]) == {"pre"}
