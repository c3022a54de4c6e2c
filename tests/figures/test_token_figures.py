"""Who gets the gradient, drawn: the numbers are those of the probe, split by position and group."""

import math
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pandas as pd
import pytest

import stability
from stability.figures import token_gradient, token_weights
from stability.figures.drawing.select import CannotFill
from synthetic import MATRICES, POSITIONS, row_of, token_share, write_run, write_sweep

BOTH = [token_gradient, token_weights]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    axes = {"norm": ["pre", "post"], "model.causal": [True, False], "seed": [0, 1]}
    write_sweep(folder, {"depth": [3], **axes})
    return folder


def read(path, module):
    rows = stability.load(path, module.TABLE, module.COLUMNS, module.WHERE)
    return module.data(rows)


def test_the_map_holds_the_root_mean_square_of_each_position(sweep):
    frame = read(sweep, token_gradient)
    assert set(frame["x"]) == {1, 2, 3} and set(frame["position"]) == set(range(POSITIONS))
    seeds = [
        pd.read_parquet(f / "probes.parquet")
        for f in sweep.iterdir()
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


def test_a_part_of_the_weights_is_taken_over_all_matrices_of_the_block(sweep):
    frame = read(sweep, token_weights)
    count = sum(map(len, MATRICES.values()))
    for i, group in enumerate(token_weights.GROUPS):
        values = frame[frame["group"] == group]["value"]
        np.testing.assert_allclose(values, 1e-3 * (i + 1) * math.sqrt(count))


def test_a_block_of_which_a_matrix_is_missing_is_left_out(sweep):
    rows = stability.load(sweep, "probes", token_weights.COLUMNS)
    lacking = (rows["layer"] == 1) & (rows["item"] == "q.first")
    frame = token_weights.data(rows[~lacking])
    assert set(frame[frame["group"] == "first"]["x"]) == {1, 3}
    assert set(frame[frame["group"] == "rest"]["x"]) == {1, 2, 3}


@pytest.mark.parametrize("module", BOTH)
def test_without_the_probe_the_reason_names_the_knob(sweep, module):
    rows = stability.load(sweep, "probes", module.COLUMNS)
    with pytest.raises(CannotFill, match=r"record\.probes=\[token_grad\]"):
        module.data(rows[rows["probe"] == "jacobian"])


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize("width", [3.25, 5.5, 6.75])
def test_every_variant_has_its_panels(sweep, module, width):
    frame = read(sweep, module)
    figure = module.draw(frame, width=width, theory=frame[frame["when"] == "at init"])
    panels = [ax for ax in figure.axes if ax.has_data() and ax.get_xlabel() + ax.get_title() != ""]
    assert figure.get_size_inches()[0] == width
    each = 3 if module is token_gradient else 2
    maps = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    assert len(maps) == 4 * each and panels


def test_the_theory_is_a_map_beside_the_measured_one(sweep):
    frame = read(sweep, token_gradient)
    figure = token_gradient.draw(frame, theory=frame[frame["when"] == "at init"])
    titles = [ax.get_title() for ax in figure.axes]
    assert sum(token_gradient.PREDICTED in title for title in titles) == 2


def test_the_theory_is_dashed_through_the_parts_of_weights(sweep):
    frame = read(sweep, token_weights)
    bare = token_weights.draw(frame).axes[0]
    full = token_weights.draw(frame, theory=frame[frame["when"] == "at init"]).axes[0]
    assert len(full.lines) == len(bare.lines) + 3


def test_runs_that_a_theory_does_not_cover_leave_its_panels_empty(sweep, tmp_path):
    frame = read(sweep, token_gradient)
    theory = frame[(frame["when"] == "at init") & (frame["norm"] == "pre")]
    figure = token_gradient.draw(frame, theory=theory)
    assert [text.get_text() for ax in figure.axes for text in ax.texts] == ["none", "none"]


def test_one_run_without_a_varying_axis_is_drawn(tmp_path):
    write_run(tmp_path, {"depth": 2}, steps=1)
    for module in BOTH:
        assert module.draw(read(tmp_path, module)).axes
