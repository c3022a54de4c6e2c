"""Ratios of last to first block against depth, and their laws."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from stability.figures import depth_ratio
from synthetic import numbers, recorded, write_run, write_sweep

DEPTHS = [4, 8, 16, 32, 64]


def test_the_exponent_is_that_of_the_law(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["pre", "post"], "depth": [1, *DEPTHS], "seed": [0, 1]}, steps=1)
    rows = numbers(tmp_path, depth_ratio)
    frame = rows.frame
    post = frame[frame["norm"] == "post"].groupby("quantity")["exponent"].first()
    assert post["variance"] == pytest.approx(0, abs=1e-9)
    pre = frame[(frame["norm"] == "pre") & (frame["quantity"] == "variance")]
    ratios = [(0.5 + 0.3 * d) / 0.8 for d in DEPTHS]
    np.testing.assert_allclose(pre.sort_values("x")["value"], [1, *ratios])
    known = stats.linregress(np.log(DEPTHS), np.log(ratios))
    assert pre["exponent"].unique() == pytest.approx([known.slope])
    assert pre["margin"].unique() == pytest.approx([known.stderr * stats.t.ppf(0.975, 3)])
    labels = [text.get_text() for text in depth_ratio.draw(rows).axes[0].texts]
    assert "flat" in labels and any("L^{0.89 " in label and "pm" in label for label in labels)


def test_exponential_growth_is_named_and_has_no_exponent(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["none", "peri"], "depth": DEPTHS[:5], "seed": [0, 1]}, steps=1)
    rows = numbers(tmp_path, depth_ratio)
    frame = rows.frame
    variances = frame[frame["quantity"] == "variance"].groupby("norm", observed=True)
    assert variances["law"].first().to_dict() == {"none": "exponential", "peri": "power"}
    assert variances["exponent"].first().isna().to_dict() == {"none": True, "peri": False}
    assert variances["rate"].first()["none"] == pytest.approx(0.4)
    labels = [t.get_text() for t in depth_ratio.draw(rows).axes[0].texts]
    assert {text.strip("$")[:2] for text in labels} == {"L^", "e^"}


@pytest.mark.parametrize(("depths", "seeds"), [((4, 8, 12, 16, 20), 1), ((4, 8, 12, 16), 2)])
def test_too_few_depths_or_seeds_have_no_law_and_the_figure_says_so(
    tmp_path: Path, depths: tuple[int, ...], seeds: int
) -> None:
    write_sweep(tmp_path, {"depth": [*depths], "seed": [*range(seeds)]}, steps=1)
    rows = numbers(tmp_path, depth_ratio)
    assert not rows.frame["fitted"].any() and not rows.frame["law"].any()
    notes = " ".join(text.get_text() for text in depth_ratio.draw(rows).texts)
    assert "a fit needs 5 depths and 2 seeds" in notes


def test_points_that_no_law_describes_have_none(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"depth": DEPTHS, "seed": [0, 1]}, steps=1)
    rows = recorded(tmp_path, depth_ratio)
    odd = (rows.frame["depth"] == DEPTHS[2]) & (rows.frame["layer"] == 0)
    frame = rows.frame.assign(var=rows.frame["var"].mask(odd, rows.frame["var"] * 30))
    found = depth_ratio.data(rows.with_frame(frame)).frame
    assert set(found.loc[found["quantity"] == "variance", "law"]) == {""}
    assert (found.loc[found["quantity"] == "gradient", "law"] != "").all()


def test_four_depths_at_which_every_seed_is_finite_have_no_law(tmp_path: Path) -> None:
    for depth, seed in product((4, 8, 12, 14, 16), range(2)):
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
    for depth, seed in product((2, 4, 6, 8, 16, 32), range(2)):
        broken = 0 if depth == 32 else None
        cell = {"norm": "none", "depth": depth, "seed": seed}
        write_run(tmp_path, cell, 1, bad_step=broken, bad_layer=20)
    for panel in depth_ratio.draw(numbers(tmp_path, depth_ratio)).axes:
        (law,) = (line for line in panel.lines if line.get_gid() == "law")
        x, y = (np.asarray(values, float) for values in law.get_data())
        assert (x.min(), x.max()) == pytest.approx((2, 16))
        low, high = panel.get_ylim()
        assert np.isfinite(y).any() and np.nanmin(y) >= low and np.nanmax(y) <= high


def test_a_ratio_over_a_last_block_that_is_not_finite_is_not_finite(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"depth": [2, 4]}, bad_step=20, bad_layer=1)
    frame = numbers(tmp_path, depth_ratio).frame
    end = frame[frame["when"] != "at init"]
    assert end["value"].isna().all() and (end["not_finite"] == 1).all()
