"""Extremes by layer against the limits of the number format."""

from pathlib import Path

import pandas as pd
import pytest

from stability.figures import dynamic_range
from synthetic import numbers, write_run


def test_dynamic_range_holds_extremes_and_the_limits_of_the_format(tmp_path: Path) -> None:
    folder = write_run(tmp_path, {"dtype": "fp16", "depth": 3})
    numbers_drawn = numbers(tmp_path, dynamic_range)
    frame = numbers_drawn.frame
    rows = pd.read_parquet(folder / "layers.parquet")
    rows = rows[(rows["step"] == 0) & (rows["layer"] == 1)]
    at = frame[(frame["when"] == "at init") & (frame["x"] == 2)].set_index("quantity")["value"]
    kept = rows[(rows["kind"] == "act") & ~rows["site"].isin(["scores", "attn_rows"])]
    assert at["largest activation"] == pytest.approx(kept["absmax"].max())
    matrices = rows[(rows["kind"] == "weight_grad") & ~rows["site"].str.contains(".", regex=False)]
    assert at["smallest weight gradient"] == pytest.approx(matrices["rms"].min())
    assert set(frame["max"]) == {65504.0} and set(frame["eps"]) == {1e-8}
    figure = dynamic_range.draw(numbers_drawn)
    labels = {t.get_text() for ax in figure.axes for t in ax.texts}
    assert {"Adam's eps", "largest fp16", "smallest normal fp16"} <= labels
    assert "largest fp16 number 65504" in figure.texts[-1].get_text()
