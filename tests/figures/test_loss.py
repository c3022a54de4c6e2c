"""Losses: windows, seeds, divergence."""

from pathlib import Path
from statistics import median

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from figure_checks import BAD_STEP, seeds_of
from stability.figures import loss
from stability.figures.drawing import style
from synthetic import UNIGRAM, numbers, write_run, write_sweep


def test_losses_are_means_over_windows_and_medians_over_seeds(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, {"seed": seed}, steps=150, every=50)
    frame = numbers(tmp_path, loss).frame
    steps = [pd.read_parquet(p / "steps.parquet") for p in tmp_path.iterdir() if p.is_dir()]
    window = int(frame["window"].iloc[0])
    assert window == 3
    train = frame[frame["quantity"] == "training"].set_index("x")["value"]
    assert len(train) == 50
    wanted = median(s["loss"][30:33].mean() for s in steps)
    assert train[31.0] == pytest.approx(wanted)
    valid = frame[frame["quantity"] == "validation"].set_index("x")["value"]
    assert list(valid.index) == [0, 50, 100, 150]
    assert valid[50] == pytest.approx(median(s["val_loss"][50] for s in steps))
    assert set(frame["unigram"]) == {UNIGRAM}


def test_divergence_is_marked_in_the_loss_where_it_happened(sweep: Path) -> None:
    marks = numbers(sweep, loss).frame
    marks = marks[marks["quantity"] == "diverged"]
    (mark,) = marks.to_dict("records")
    assert (mark["norm"], mark["depth"], mark["x"]) == ("post", 4, BAD_STEP)
    steps = min(seeds_of(sweep, "post", 4, "steps"), key=len)
    assert mark["value"] == steps["loss"].iloc[-2]


def test_losses_above_the_axis_are_marked_and_named(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["pre", "none"]}, steps=4)
    rows = numbers(tmp_path, loss)
    frame = rows.frame.copy()
    high = frame["norm"].astype(str) == "none"
    frame.loc[high & (frame["quantity"] != "diverged"), "value"] = 1e6
    figure = loss.draw(rows.with_frame(frame))
    for ax in figure.axes:
        assert ax.get_ylim()[1] < 1e6
        (arrow,) = (text for text in ax.texts if text.get_text() == "$\\uparrow$$10^{6}$")
        colour = style.colours(rows, "norm")["none"]
        assert to_hex(arrow.get_color()) == to_hex(colour)
