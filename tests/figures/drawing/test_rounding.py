"""Gradients that are rounding error: which they are, and that they set no axis."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stability.figures import gradient, weight_gradient
from stability.figures.drawing import lines
from stability.figures.drawing.rounding import is_rounding, is_unresolved, with_rounding
from synthetic import recorded, write_sweep

ROWS = pd.DataFrame(
    {
        "run": ["a", "a", "a", "b", "c", "d"],
        "step": [0, 0, 1, 0, 0, 0],
        "site": ["scores", "resid_post", "scores", "scores", "scores", "scores"],
        "kind": ["act", "grad", "act", "act", "act", "act"],
        "absmax": [2.0**25, 1e9, 1.0, 2.0**25, 2.0**25, 2.0**25],
        "model.attention": ["fused", "fused", "fused", "math", None, "fused"],
        "dtype": ["fp32", "fp32", "fp32", "fp32", "bf16", "fp64"],
    }
)


def test_rounding_is_the_largest_score_times_eps_of_what_the_fused_kernel_computes_in() -> None:
    found = with_rounding(ROWS)
    assert list(found["rounding"]) == [2.0, 2.0, 2.0**-24, 0.0, 2.0, 2.0**-28]
    assert list(is_rounding(found)) == [True, True, False, False, True, False]
    assert list(found["score_eps"]) == [2.0, 2.0, 2.0**-24, 2.0, 2.0, 2.0**-28]
    assert list(is_unresolved(found)) == [True, True, False, True, True, False]
    assert not is_rounding(ROWS).any() and not is_unresolved(ROWS).any()


@pytest.mark.parametrize("module", [gradient, weight_gradient])
def test_a_gradient_that_is_rounding_error_is_faint_and_sets_no_axis(
    tmp_path: Path, module
) -> None:
    write_sweep(tmp_path, {"norm": ["pre", "none"], "depth": [3]}, steps=1)
    rows = recorded(tmp_path, module)
    frame = rows.frame
    bad = frame["norm"] == "none"
    scores = frame["site"] == "scores"
    frame = frame.assign(
        absmax=frame["absmax"].mask(bad & scores, 1e9), rms=frame["rms"].mask(bad & ~scores, 1e20)
    )
    figure = module.draw(module.data(rows.with_frame(frame)))
    panel = figure.axes[0]
    assert panel.get_ylim()[1] < 1e15
    opacities = [line.get_alpha() for line in panel.lines if len(line.get_xdata()) == 3]
    assert sorted(a for a in opacities if a is not None) == [lines.FAINT, 1.0]
    assert any(text.get_text().startswith("$\\uparrow$") for text in panel.texts)
    assert any("rounding error of a fused attention kernel" in t.get_text() for t in figure.texts)
    sound = module.draw(module.data(rows.with_frame(frame.assign(absmax=1.0)))).axes[0]
    assert sound.get_ylim()[1] > 1e15


def test_an_embedding_far_from_the_blocks_is_marked_at_the_edge(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"depth": [3]}, steps=1)
    rows = recorded(tmp_path, gradient)
    far = rows.frame.assign(rms=rows.frame["rms"].mask(rows.frame["layer"] == -1, 1e9))
    for frame, inside in ((rows.frame, True), (far, False)):
        panel = gradient.draw(gradient.data(rows.with_frame(frame))).axes[0]
        (hollow,) = (line for line in panel.lines if line.get_gid() == "o")
        assert (panel.get_ylim()[1] < 1e6) and np.all(hollow.get_ydata() <= panel.get_ylim()[1])
        assert any("uparrow" in text.get_text() for text in panel.texts) != inside
