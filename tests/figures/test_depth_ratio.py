"""Ratios of last to first block against depth, and their laws."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from stability.figures import depth_ratio
from synthetic import numbers, write_run, write_sweep


def test_the_exponent_is_that_of_the_law(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["pre", "post"], "depth": [1, 8, 32, 128]}, steps=1)
    frame = numbers(tmp_path, depth_ratio).frame
    post = frame[frame["norm"] == "post"].groupby("quantity")["exponent"].first()
    assert post["variance"] == pytest.approx(0, abs=1e-9)
    pre = frame[(frame["norm"] == "pre") & (frame["quantity"] == "variance")]
    ratios = [(0.5 + 0.3 * d) / 0.8 for d in (8, 32, 128)]
    np.testing.assert_allclose(pre.sort_values("x")["value"], [1, *ratios])
    slope = np.polyfit(np.log([8, 32, 128]), np.log(ratios), 1)[0]
    assert pre["exponent"].unique() == pytest.approx([slope])


def test_exponential_growth_is_named_and_has_no_exponent(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["none", "peri"], "depth": [4, 8, 16]}, steps=1)
    rows = numbers(tmp_path, depth_ratio)
    frame = rows.frame
    variances = frame[frame["quantity"] == "variance"].groupby("norm", observed=True)
    assert variances["law"].first().to_dict() == {"none": "exponential", "peri": "power"}
    assert variances["exponent"].first().isna().to_dict() == {"none": True, "peri": False}
    assert variances["rate"].first()["none"] == pytest.approx(0.4)
    labels = [t.get_text() for t in depth_ratio.draw(rows).axes[0].texts]
    assert sorted(text.strip("$")[:2] for text in labels) == ["L^", "e^"]


def test_two_depths_at_which_every_seed_is_finite_have_no_law(tmp_path: Path) -> None:
    for depth, seed in product((4, 8, 16), range(2)):
        bad = 0 if (depth, seed) == (16, 1) else None
        write_run(tmp_path, {"depth": depth, "seed": seed}, bad_step=bad, bad_layer=9)
    rows = numbers(tmp_path, depth_ratio)
    frame = rows.frame
    start = frame[frame["when"] == "at init"]
    assert not start["fitted"].any() and not start["law"].any()
    assert start[["exponent", "rate"]].isna().all(axis=None)
    for panel in depth_ratio.draw(rows).axes:
        assert not [line for line in panel.lines if line.get_gid() == "law"]
        assert not [text for text in panel.texts if "^" in text.get_text()]


def test_a_law_is_drawn_over_the_depths_it_is_fitted_to_and_inside_the_panel(
    tmp_path: Path,
) -> None:
    for depth in (4, 8, 16, 32):
        broken = 0 if depth == 32 else None
        write_run(tmp_path, {"norm": "none", "depth": depth}, 1, bad_step=broken, bad_layer=20)
    for panel in depth_ratio.draw(numbers(tmp_path, depth_ratio)).axes:
        (law,) = (line for line in panel.lines if line.get_gid() == "law")
        x, y = (np.asarray(values, float) for values in law.get_data())
        assert (x.min(), x.max()) == pytest.approx((4, 16))
        low, high = panel.get_ylim()
        assert np.isfinite(y).any() and np.nanmin(y) >= low and np.nanmax(y) <= high


def test_a_ratio_over_a_last_block_that_is_not_finite_is_not_finite(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"depth": [2, 4]}, bad_step=20, bad_layer=1)
    frame = numbers(tmp_path, depth_ratio).frame
    end = frame[frame["when"] != "at init"]
    assert end["value"].isna().all() and (end["not_finite"] == 1).all()
