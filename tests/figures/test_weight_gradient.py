"""Weight gradients per matrix, and those of an external model."""

from pathlib import Path
from statistics import geometric_mean

import pandas as pd
import pytest

from figure_checks import of_variant, seeds_of, values_at
from stability.figures import weight_gradient
from stability.results.sweep_rows import SweepRows
from synthetic import numbers, write_run


def test_weight_gradients_are_per_matrix(sweep: Path) -> None:
    seeds = seeds_of(sweep, "pre", 4)
    rms = values_at(seeds, "rms", 0, layer=1, site="mlp_in", kind="weight_grad")
    rows = numbers(sweep, weight_gradient)
    weights = rows.frame["weight"].cat.categories
    assert list(weights) == ["q", "k", "v", "attn_out", "mlp_in", "mlp_out"]
    found = of_variant(rows, "pre", 4, when="at init", weight="mlp_in", x=2)["value"].item()
    assert found == pytest.approx(geometric_mean(rms) * 64)


def external(folder: Path, names: dict[str, int], layers: int = 3) -> pd.DataFrame:
    """Rows of weight gradients of an external model, in the frame that a figure reads."""
    rows = pd.read_parquet(write_run(folder, {"depth": layers}, steps=1) / "layers.parquet")
    rows = rows[(rows["kind"] == "weight_grad") & (rows["site"] == "q")]
    named = [rows.assign(site=name, numel=n, sublayer="block") for name, n in names.items()]
    return pd.concat(named, ignore_index=True).assign(status="completed")


def test_weights_of_any_name_are_drawn_the_largest_first_and_no_biases(tmp_path: Path) -> None:
    sizes = {"norm1.weight": 64, "attn.in_proj_weight": 12288, "attn.in_proj_bias": 192}
    rows = external(tmp_path, {**sizes, "linear1.weight": 16384, "linear1.bias": 256})
    found = weight_gradient.data(SweepRows(rows))
    frame = found.frame
    assert list(frame["weight"].cat.categories) == ["linear1", "attn.in_proj", "norm1"]
    assert sorted(frame["x"].unique()) == [1, 2, 3]
    titles = [ax.get_title() for ax in weight_gradient.draw(found).axes]
    assert titles == ["linear1", "attn.\nin_proj", "norm1"]


def test_the_largest_of_many_weights_lie_side_by_side_and_it_is_said(tmp_path: Path) -> None:
    rows = external(tmp_path, {f"experts.{i}.weight": 100 + i for i in range(20)}, layers=1)
    figure = weight_gradient.draw(weight_gradient.data(SweepRows(rows)))
    assert [ax.get_title() for ax in figure.axes] == [f"experts.\n{i}" for i in range(19, 12, -1)]
    assert len({ax.get_position().y0 for ax in figure.axes}) == 1
    assert "First 7 of 20 weights" in figure.texts[-1].get_text()


def test_sublayers_that_a_pattern_names_tell_weights_of_one_name_apart(tmp_path: Path) -> None:
    rows = external(tmp_path, {"weight": 9})
    rows = pd.concat([rows.assign(sublayer=name) for name in ("linear1", "linear2")])
    assert set(weight_gradient.data(SweepRows(rows)).frame["weight"]) == {"linear1", "linear2"}
