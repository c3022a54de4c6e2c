"""Gradient by layer: all tokens, the median token, the share of token 0."""

import math
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
import pytest

from figure_checks import of_variant, seeds_of, values_at
from stability.figures import gradient
from synthetic import numbers, recorded, write_run


def test_gradient_norms_are_those_of_all_tokens_and_of_the_median_token(sweep: Path) -> None:
    found = numbers(sweep, gradient)
    seeds = seeds_of(sweep, "post", 4)
    where = {"layer": 2, "sublayer": "mlp", "site": "resid_post", "kind": "grad"}
    rms, numel, median_rms, share = (
        values_at(seeds, c, 0, **where) for c in ("rms", "numel", "token_rms_median", "first_share")
    )
    at = of_variant(found, "post", 4, when="at init", x=3).set_index("quantity")["value"]
    norms = [r * math.sqrt(n) for r, n in zip(rms, numel, strict=True)]
    assert at["all tokens"] == pytest.approx(geometric_mean(norms))
    assert at["median token"] == pytest.approx(geometric_mean(median_rms) * math.sqrt(64))
    assert at["share of token 0"] == pytest.approx(median(share))


def test_the_median_token_of_a_model_of_unknown_width_is_given_as_rms(sweep: Path) -> None:
    rows = recorded(sweep, gradient)
    without_width = rows.frame.assign(**{"model.width": np.nan})
    known = gradient.data(rows).frame
    unknown = gradient.data(rows.with_frame(without_width)).frame
    norms = known[known["quantity"] == "median token"]["value"].to_numpy()
    rms = unknown[unknown["quantity"] == "median token, rms"]["value"].to_numpy()
    width = rows.frame["model.width"].iloc[0]
    np.testing.assert_allclose(norms, rms * width**0.5)
    assert "median token" not in set(unknown["quantity"])


def test_a_gradient_that_is_a_kernels_rounding_error_is_said_to_be_one(tmp_path: Path) -> None:
    for kernel in ("fused", "math"):
        write_run(tmp_path, {"model.attention": kernel, "depth": 2}, steps=1)
    rows = recorded(tmp_path, gradient)
    frame = rows.frame
    assert not gradient.data(rows).remarks
    scores = frame["site"] == "scores"
    assert scores.any()
    large = frame.assign(absmax=frame["absmax"].mask(scores, 1e9))
    remark, other = gradient.data(rows.with_frame(large)).remarks
    assert "fused kernel is rounding error" in remark and "1e+09" in remark
    assert "math" not in remark
    assert "math" in other and "order of magnitude at best" in other
    old = large.assign(**{"model.attention": None})
    assert gradient.data(rows.with_frame(old)).remarks  # before there was a choice
    wide = large.assign(dtype="fp64")
    assert not gradient.data(rows.with_frame(wide)).remarks


@pytest.mark.parametrize("kernel", ["fused", "math"])
@pytest.mark.parametrize(("largest", "said"), [(0.019, 0), (0.021, 1), (0.9, 1)])
def test_scores_that_fp32_does_not_resolve_are_said_of_every_kernel(
    tmp_path: Path, kernel: str, largest: float, said: int
) -> None:
    write_run(tmp_path, {"model.attention": kernel}, steps=1, largest_score=largest * 2.0**24)
    remarks = numbers(tmp_path, gradient).remarks
    assert len(remarks) == said
    assert all("does not resolve the scores" in remark for remark in remarks)


def test_rows_of_theory_need_no_largest_magnitude(tmp_path: Path) -> None:
    write_run(tmp_path, {}, steps=1)
    rows = recorded(tmp_path, gradient)
    bare = rows.frame[rows.frame["site"] != "scores"].drop(columns=["absmax", "subnormal"])
    assert not gradient.data(rows.with_frame(bare)).remarks


def test_subnormal_gradients_are_said_with_the_worst_place(tmp_path: Path) -> None:
    write_run(tmp_path, {"norm": "pre", "depth": 2}, steps=1)
    write_run(tmp_path, {"norm": "post", "depth": 2}, steps=1, subnormal=512 * 16)
    (said,) = numbers(tmp_path, gradient).remarks
    assert said.startswith("Post-LN: up to 25% of a gradient's entries (step 0, block 1)")
