"""Figures show the numbers that a slow, obvious computation gives, and survive any numbers."""

import ast
import math
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import stability
from stability import figures
from stability.figures import (
    attention,
    depth_ratio,
    dynamic_range,
    gradient,
    gradient_map,
    loss,
    stability_map,
    update_ratio,
    variance,
    variance_map,
    weight_gradient,
)
from stability.figures.drawing import lines, style
from stability.figures.drawing.roles import roles
from stability.figures.drawing.scales import log_limits, short
from stability.figures.drawing.select import CannotFill
from synthetic import UNIGRAM, numbers, row_of, write_run, write_sweep

ALL = figures.modules()
BAD_STEP, BAD_LAYER = 30, 1


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two placements, two depths, three seeds; one seed of Post-LN at depth 4 diverges."""
    folder = tmp_path_factory.mktemp("sweep")
    for norm in ("pre", "post"):
        for depth in (2, 4):
            for seed in range(3):
                bad = BAD_STEP if (norm, depth, seed) == ("post", 4, 1) else None
                cell = {"norm": norm, "depth": depth, "seed": seed}
                write_run(folder, cell, bad_step=bad, bad_layer=BAD_LAYER)
    return folder


def raw(sweep: Path, norm: str, depth: int, table: str = "layers") -> list[pd.DataFrame]:
    """The rows of each seed of a variant, straight from its files."""
    found = []
    for folder in sorted(p for p in sweep.iterdir() if p.is_dir()):
        config = row_of(folder)
        if (config["norm"], config["depth"]) == (norm, depth):
            found.append(pd.read_parquet(folder / f"{table}.parquet"))
    assert len(found) == 3
    return found


def line(frame: pd.DataFrame, norm: str, depth: int, **where: object) -> pd.DataFrame:
    for name, value in {"norm": norm, "depth": depth, **where}.items():
        frame = frame[frame[name] == value]
    assert len(frame)
    return frame


def values_at(seeds: list[pd.DataFrame], column: str, step: int, **where: object) -> list[float]:
    """The one value of each seed that has the step, that is, of a seed's last step if step < 0."""
    found = []
    for seed in seeds:
        rows = seed[seed["step"] == (seed["step"].max() if step < 0 else step)]
        for name, value in where.items():
            rows = rows[rows[name] == value]
        found += rows[column].tolist()
    return found


@pytest.mark.parametrize(("norm", "depth"), [("pre", 2), ("post", 4)])
@pytest.mark.parametrize("end", [False, True])
def test_variance_is_the_geometric_mean_over_seeds(
    sweep: Path, norm: str, depth: int, end: bool
) -> None:
    frame = numbers(sweep, variance)
    when = frame["when"].cat.categories[int(end)]
    seeds = raw(sweep, norm, depth)
    for _, row in line(frame, norm, depth, when=when).iterrows():
        sublayer = "embed" if row["x"] == 0 else "mlp"
        where = {"layer": row["x"] - 1, "sublayer": sublayer, "site": "resid_post", "kind": "act"}
        values = values_at(seeds, "var", -1 if end else 0, **where)
        finite = [v for v in values if math.isfinite(v)]
        assert row["value"] == pytest.approx(geometric_mean(finite), rel=1e-12)
        assert row["low"] == pytest.approx(min(finite)) and row["high"] == pytest.approx(
            max(finite)
        )
        assert row["seeds"] == row["runs"] == 3
        assert row["not_finite"] == len(values) - len(finite)


def test_diverged_seeds_are_counted_and_named(sweep: Path) -> None:
    frame = numbers(sweep, variance)
    assert set(line(frame, "post", 4)["diverged"]) == {1}
    assert set(line(frame, "pre", 4)["diverged"]) == {0}
    figure = variance.draw(frame)
    notes = " ".join(t.get_text().replace("\n", " ") for t in figure.texts)
    assert "Post-LN, L = 4: 1 of 3 diverged" in notes
    assert "geometric mean of 3 seeds" in notes


def test_gradient_norms_are_those_of_all_tokens_and_of_the_median_token(sweep: Path) -> None:
    frame = numbers(sweep, gradient)
    seeds = raw(sweep, "post", 4)
    where = {"layer": 2, "sublayer": "mlp", "site": "resid_post", "kind": "grad"}
    rms, numel, median_rms, share = (
        values_at(seeds, c, 0, **where) for c in ("rms", "numel", "token_rms_median", "first_share")
    )
    at = line(frame, "post", 4, when="at init", x=3).set_index("quantity")["value"]
    norms = [r * math.sqrt(n) for r, n in zip(rms, numel, strict=True)]
    assert at["all tokens"] == pytest.approx(geometric_mean(norms))
    assert at["median token"] == pytest.approx(geometric_mean(median_rms) * math.sqrt(64))
    assert at["share of token 0"] == pytest.approx(median(share))


def test_weight_gradients_and_update_ratios_are_per_matrix(sweep: Path) -> None:
    seeds = raw(sweep, "pre", 4)
    where = {"layer": 1, "site": "mlp_in"}
    rms = values_at(seeds, "rms", 0, kind="weight_grad", **where)
    frame = numbers(sweep, weight_gradient)
    assert list(frame["weight"].cat.categories) == ["q", "k", "v", "attn_out", "mlp_in", "mlp_out"]
    found = line(frame, "pre", 4, when="at init", weight="mlp_in", x=2)["value"].item()
    assert found == pytest.approx(geometric_mean(rms) * 64)
    update, weight = (values_at(seeds, "rms", 0, kind=k, **where) for k in ("update", "weight"))
    ratios = [u / w for u, w in zip(update, weight, strict=True)]
    frame = numbers(sweep, update_ratio)
    found = line(frame, "pre", 4, when="at init", weight="mlp_in", x=2)["value"].item()
    assert found == pytest.approx(geometric_mean(ratios))


def foreign(folder: Path, names: dict[str, int], layers: int = 3) -> pd.DataFrame:
    """Rows of weight gradients of somebody else's model, in the frame that a figure reads."""
    rows = pd.read_parquet(write_run(folder, {"depth": layers}, steps=1) / "layers.parquet")
    rows = rows[(rows["kind"] == "weight_grad") & (rows["site"] == "q")]
    named = [rows.assign(site=name, numel=n, sublayer="block") for name, n in names.items()]
    return pd.concat(named, ignore_index=True).assign(status="completed")


def test_weights_of_any_name_are_drawn_the_largest_first_and_no_biases(tmp_path: Path) -> None:
    sizes = {"norm1.weight": 64, "attn.in_proj_weight": 12288, "attn.in_proj_bias": 192}
    rows = foreign(tmp_path, {**sizes, "linear1.weight": 16384, "linear1.bias": 256})
    frame = weight_gradient.data(rows)
    assert list(frame["weight"].cat.categories) == ["linear1", "attn.in_proj", "norm1"]
    assert sorted(frame["x"].unique()) == [1, 2, 3]
    titles = [ax.get_title() for ax in weight_gradient.draw(frame).axes]
    assert titles == ["linear1", "attn.\nin_proj", "norm1"]


def test_the_largest_of_many_weights_stand_side_by_side_and_it_is_said(tmp_path: Path) -> None:
    rows = foreign(tmp_path, {f"experts.{i}.weight": 100 + i for i in range(20)}, layers=1)
    figure = weight_gradient.draw(weight_gradient.data(rows))
    assert [ax.get_title() for ax in figure.axes] == [f"experts.\n{i}" for i in range(19, 12, -1)]
    assert len({ax.get_position().y0 for ax in figure.axes}) == 1
    assert "First 7 of 20 weights" in figure.texts[-1].get_text()


def test_sublayers_that_a_pattern_names_tell_weights_of_one_name_apart(tmp_path: Path) -> None:
    rows = foreign(tmp_path, {"weight": 9})
    rows = pd.concat([rows.assign(sublayer=name) for name in ("linear1", "linear2")])
    assert set(weight_gradient.data(rows)["weight"]) == {"linear1", "linear2"}


def test_attention_shows_the_largest_logit_and_the_mean_entropy_below_its_bound(
    sweep: Path,
) -> None:
    frame = numbers(sweep, attention)
    seeds = raw(sweep, "pre", 4)
    at = line(frame, "pre", 4, when="at init", x=4).set_index("quantity")
    logits = values_at(seeds, "absmax", 0, layer=3, site="scores")
    assert at.loc["largest logit", "value"] == pytest.approx(geometric_mean(logits))
    assert at.loc["entropy", "value"] == median(
        values_at(seeds, "mean", 0, layer=3, site="attn_rows")
    )
    assert at.loc["entropy", "bound"] == pytest.approx(sum(map(math.log, range(1, 65))) / 64)


@pytest.mark.parametrize("module", [variance_map, gradient_map])
def test_maps_hold_every_recorded_step(sweep: Path, module: ModuleType) -> None:
    frame = numbers(sweep, module)
    assert set(line(frame, "pre", 4)["step"]) == {0, 20, 40}
    kind, column = ("act", "var") if module is variance_map else ("grad", "rms")
    where = {"layer": 0, "sublayer": "mlp", "site": "resid_post", "kind": kind}
    mean = geometric_mean(values_at(raw(sweep, "pre", 4), column, 20, **where))
    mean *= 1 if module is variance_map else math.sqrt(512 * 64)
    assert line(frame, "pre", 4, step=20, x=1)["value"].item() == pytest.approx(mean)


def test_a_map_leaves_out_the_last_step_of_one_diverged_seed_of_three(sweep: Path) -> None:
    assert BAD_STEP not in set(line(numbers(sweep, variance_map), "post", 4)["step"])


def test_losses_are_means_over_windows_and_medians_over_seeds(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, {"seed": seed}, steps=150, every=50)
    frame = numbers(tmp_path, loss)
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
    marks = numbers(sweep, loss)
    marks = marks[marks["quantity"] == "diverged"]
    (mark,) = marks.to_dict("records")
    assert (mark["norm"], mark["depth"], mark["x"]) == ("post", 4, BAD_STEP)
    steps = min(raw(sweep, "post", 4, "steps"), key=len)
    assert mark["value"] == steps["loss"].iloc[-2]


def test_the_exponent_is_that_of_the_law(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["pre", "post"], "depth": [1, 8, 32, 128]}, steps=1)
    frame = numbers(tmp_path, depth_ratio)
    post = frame[frame["norm"] == "post"].groupby("quantity")["exponent"].first()
    assert post["variance"] == pytest.approx(0, abs=1e-9)
    pre = frame[(frame["norm"] == "pre") & (frame["quantity"] == "variance")]
    ratios = [(0.5 + 0.3 * d) / 0.8 for d in (8, 32, 128)]
    np.testing.assert_allclose(pre.sort_values("x")["value"], [1, *ratios])
    slope = np.polyfit(np.log([8, 32, 128]), np.log(ratios), 1)[0]
    assert pre["exponent"].unique() == pytest.approx([slope])


def test_exponential_growth_is_named_and_has_no_exponent(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["none", "peri"], "depth": [4, 8, 16]}, steps=1)
    frame = numbers(tmp_path, depth_ratio)
    variances = frame[frame["quantity"] == "variance"].groupby("norm", observed=True)
    assert variances["law"].first().to_dict() == {"none": "exponential", "peri": "power"}
    assert variances["exponent"].first().isna().to_dict() == {"none": True, "peri": False}
    assert variances["rate"].first()["none"] == pytest.approx(0.4)
    labels = [t.get_text() for t in depth_ratio.draw(frame).axes[0].texts]
    assert sorted(text.strip("$")[:2] for text in labels) == ["L^", "e^"]


def test_two_depths_at_which_every_seed_is_finite_have_no_law(tmp_path: Path) -> None:
    for depth, seed in product((4, 8, 16), range(2)):
        bad = 0 if (depth, seed) == (16, 1) else None
        write_run(tmp_path, {"depth": depth, "seed": seed}, bad_step=bad, bad_layer=9)
    frame = numbers(tmp_path, depth_ratio)
    start = frame[frame["when"] == "at init"]
    assert not start["fitted"].any() and not start["law"].any()
    assert start[["exponent", "rate"]].isna().all(axis=None)
    for panel in depth_ratio.draw(frame).axes:
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
    frame = numbers(tmp_path, depth_ratio)
    end = frame[frame["when"] != "at init"]
    assert end["value"].isna().all() and (end["not_finite"] == 1).all()


def test_the_cross_marks_the_block_that_was_first_not_finite_in_the_order_of_execution(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, {"depth": 6}, bad_step=20, bad_layer=2)
    for module, first in ((variance, 3), (gradient, 6)):
        panel = module.draw(numbers(tmp_path, module)).axes[-1]
        (cross,) = [line for line in panel.lines if line.get_gid() == "x"]
        assert cross.get_xdata() == [first]


def test_the_stability_map_says_what_became_of_every_seed(sweep: Path) -> None:
    frame = numbers(sweep, stability_map).set_index(["norm", "depth"])
    assert frame.loc[("post", 4), ["runs", "completed", "diverged", "first_step"]].tolist() == [
        3, 2, 1, BAD_STEP + 1,
    ]  # fmt: skip
    runs = stability.load(sweep, "runs")
    mine = runs[(runs["norm"] == "post") & (runs["depth"] == 4) & (runs["status"] == "completed")]
    assert frame.loc[("post", 4), "loss"] == pytest.approx(median(mine["final_val_loss"]))


def test_dynamic_range_holds_extremes_and_the_limits_of_the_format(tmp_path: Path) -> None:
    folder = write_run(tmp_path, {"dtype": "fp16", "depth": 3})
    frame = numbers(tmp_path, dynamic_range)
    rows = pd.read_parquet(folder / "layers.parquet")
    rows = rows[(rows["step"] == 0) & (rows["layer"] == 1)]
    at = frame[(frame["when"] == "at init") & (frame["x"] == 2)].set_index("quantity")["value"]
    kept = rows[(rows["kind"] == "act") & ~rows["site"].isin(["scores", "attn_rows"])]
    assert at["largest activation"] == pytest.approx(kept["absmax"].max())
    matrices = rows[(rows["kind"] == "weight_grad") & ~rows["site"].str.contains(".", regex=False)]
    assert at["smallest weight gradient"] == pytest.approx(matrices["rms"].min())
    assert set(frame["max"]) == {65504.0} and set(frame["eps"]) == {1e-8}
    figure = dynamic_range.draw(frame)
    labels = {t.get_text() for ax in figure.axes for t in ax.texts}
    assert {"Adam's eps", "fp16 max", "fp16 tiny"} <= labels
    assert "fp16 max 65504" in figure.texts[-1].get_text()


def legend(figure: Figure) -> list[str]:
    return [t.get_text() for box in figure.legends for t in box.get_texts()]


def test_legends_name_what_varies_and_nothing_else(sweep: Path, tmp_path: Path) -> None:
    assert set(legend(variance.draw(numbers(sweep, variance)))) >= {"Pre-LN", "Post-LN", "L = 2"}
    write_run(tmp_path, {"norm": "pre"})
    assert legend(variance.draw(numbers(tmp_path, variance))) == ["embedding (hollow)"]


def test_a_figure_of_one_step_says_which(tmp_path: Path) -> None:
    write_run(tmp_path, {"norm": "pre"}, steps=1)
    assert "At init." in variance.draw(numbers(tmp_path, variance)).texts[-1].get_text()


def test_the_median_token_of_a_model_of_unknown_width_is_given_as_rms(sweep: Path) -> None:
    rows = stability.load(sweep, "layers", gradient.COLUMNS, gradient.WHERE)
    known, unknown = gradient.data(rows), gradient.data(rows.assign(**{"model.width": np.nan}))
    norms = known[known["quantity"] == "median token"]["value"].to_numpy()
    rms = unknown[unknown["quantity"] == "median token, rms"]["value"].to_numpy()
    width = rows["model.width"].iloc[0]
    np.testing.assert_allclose(norms, rms * width**0.5)
    assert "median token" not in set(unknown["quantity"])


def test_losses_above_the_axis_are_marked_and_named(tmp_path: Path) -> None:
    write_sweep(tmp_path, {"norm": ["pre", "none"]}, steps=4)
    rows = numbers(tmp_path, loss)
    high = rows["norm"].astype(str) == "none"
    rows.loc[high & (rows["quantity"] != "diverged"), "value"] = 1e6
    figure = loss.draw(rows)
    assert any(line.get_marker() == "^" for ax in figure.axes for line in ax.lines)
    assert "Above the axis: no norm to 1e+06" in figure.texts[-1].get_text()


def test_a_variant_keeps_its_colour_whatever_stands_beside_it() -> None:
    options = {"norm": {"pre": ("Pre-LN", 0), "post": ("Post-LN", 1), "mine": ("Mine", 0)}}

    def colours(*names: str) -> dict[str, str]:
        frame = pd.DataFrame({"norm": names})
        frame.attrs["options"] = options
        return style.colours(frame, "norm")

    assert colours("pre", "post")["post"] == colours("post")["post"] == style.COLOURS[1]
    clash = colours("pre", "post", "mine")
    assert len(set(clash.values())) == 3


def luminance(colour: str) -> float:
    return float(np.dot([int(colour[i : i + 2], 16) for i in (1, 3, 5)], (0.2126, 0.7152, 0.0722)))


def test_colours_are_told_apart_by_the_colour_blind() -> None:
    """Machado et al. 2009, full deuteranopia and protanopia, distance in linear RGB."""
    deutan = [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
    protan = [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
    rgb = [[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in style.COLOURS[:6]]
    for matrix in (np.eye(3), np.array(deutan), np.array(protan)):
        seen = np.array(rgb) @ np.array(matrix).T
        apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + np.eye(6) * 9
        assert apart.min() > 0.1


@pytest.mark.parametrize(
    ("levels", "colour", "dash", "facets"),
    [
        ({}, None, None, []),
        ({"norm": 3}, "norm", None, []),
        ({"depth": 6}, "depth", None, []),
        ({"depth": 3, "norm": 4}, "norm", "depth", []),
        ({"norm": 3, "depth": 6}, "norm", None, ["depth"]),
        ({"norm": 3, "depth": 2, "init": 5, "dtype": 2}, "norm", "dtype", ["init", "depth"]),
    ],
)
def test_twelve_lines_share_a_panel_and_more_are_split(
    levels: dict[str, int], colour: str | None, dash: str | None, facets: list[str]
) -> None:
    cells = product(*(range(n) for n in levels.values()))
    frame = pd.DataFrame(cells, columns=list(levels))
    for axis in set(levels) - {"depth"}:
        frame[axis] = frame[axis].map(str)
    frame.attrs["axes"] = [a for a in ("norm", "init", "depth", "dtype") if a in levels]
    found = roles(frame)
    assert (found.colour, found.dash, sorted(found.facets)) == (colour, dash, sorted(facets))


@pytest.mark.parametrize(
    ("value", "text"),
    [(65504, "65504"), (0.05, "0.05"), (1e-8, "$10^{-8}$"), (2.0**-14, "$6.1\\times10^{-5}$")],
)
def test_numbers_in_labels_are_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize("values", [[], [math.nan], [0.0], [math.inf, -1], [5e-324, 1e308], [1.0]])
def test_log_limits_are_usable_whatever_the_values(values: list[float]) -> None:
    low, high = log_limits(values)
    assert 0 < low < high < math.inf


CASES = {
    "one layer, nothing finite from step 0": lambda d: write_run(
        d, {"norm": "none", "depth": 1}, bad_step=0
    ),
    "a run without rows, other data": lambda d: [
        write_run(d, {"norm": "pre", "depth": 1}, steps=1),
        write_run(d, {"norm": "post"}, rows=False, status="running", data_hash="b" * 64),
    ],
    "a half-full grid over another axis": lambda d: [
        write_run(d, {"train.lr": lr, "depth": depth, "dtype": t}, steps=3, every=1)
        for lr, depth, t in [(1e-3, 2, "fp16"), (0.01, 3, "fp32"), (0.01, 2, "amp_bf16")]
    ],
    "diverged at different steps": lambda d: [
        write_run(d, {"seed": s, "depth": 2}, bad_step=5 * s + 1) for s in range(3)
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_any_sweep_is_drawn_or_refused_with_a_reason(tmp_path: Path, case: str) -> None:
    CASES[case](tmp_path)
    drawn = 0
    for module in ALL.values():
        try:
            figure = module.draw(numbers(tmp_path, module), width=5.5)
        except CannotFill as reason:
            assert str(reason) and "\n" not in str(reason)
            continue
        assert figure.get_size_inches()[0] == 5.5
        drawn += 1
    assert drawn >= 5


STRANGE = [0.0, math.nan, math.inf, -math.inf, 1e-320, 1e300, 1.0]


def poison(frame: pd.DataFrame, first: int) -> pd.DataFrame:
    """The frame with every statistic replaced by strange numbers in turn."""
    poisoned = frame.copy()
    strange = np.resize(np.roll(STRANGE, -first), len(frame))
    for column in poisoned.select_dtypes("float64"):
        if not column.startswith(("data.", "finfo.", "model.", "train.")):
            poisoned[column] = strange
    return poisoned


@pytest.mark.parametrize("name", ALL)
def test_no_number_breaks_a_figure(tmp_path: Path, name: str) -> None:
    module = ALL[name]
    write_sweep(tmp_path, {"depth": [2, 3]}, steps=3, every=2)
    rows = stability.load(tmp_path, module.TABLE, module.COLUMNS, module.WHERE)
    module.draw(module.data(poison(rows, 0)), width=3.25)
    for first, value in enumerate(STRANGE):
        module.data(poison(rows, first))
        assert log_limits([value])[0] < log_limits([value])[1]


def test_zeros_are_shown_at_the_edge_of_a_log_axis(tmp_path: Path) -> None:
    write_run(tmp_path, {"depth": 3}, steps=1)
    rows = stability.load(tmp_path, gradient.TABLE, gradient.COLUMNS, gradient.WHERE)
    frame = gradient.data(rows.assign(rms=rows["rms"].where(rows["layer"] != 0, 0.0)))
    point = frame[(frame["x"] == 1) & (frame["quantity"] == "all tokens")]
    assert point["value"].item() == 0
    assert "exactly 0" in legend(gradient.draw(frame))


def test_a_theory_is_drawn_dashed_through_the_points(sweep: Path) -> None:
    frame = numbers(sweep, variance)
    exact = frame.assign(low=frame["value"], high=frame["value"])
    bare, with_theory = variance.draw(frame), variance.draw(frame, theory=exact)
    assert len(with_theory.axes[0].lines) == len(bare.axes[0].lines) + 4
    assert lines.FINITE not in legend(with_theory)
    wide = exact.assign(low=exact["value"] / 2, high=2 * exact["value"])
    bounded = variance.draw(frame, theory=wide)
    assert len(bounded.axes[0].lines) == len(bare.axes[0].lines) + 3 * 4
    assert lines.FINITE in legend(bounded)


def test_a_figure_can_be_drawn_from_its_csv(sweep: Path, tmp_path: Path) -> None:
    numbers(sweep, gradient).to_csv(tmp_path / "gradient.csv", index=False)
    again = pd.read_csv(tmp_path / "gradient.csv")
    assert {"pre", "post"} <= set(legend(gradient.draw(again)))


@pytest.mark.parametrize("name", ALL)
def test_every_figure_states_what_it_needs(name: str) -> None:
    module = ALL[name]
    assert module.__doc__ and module.data.__doc__ and module.draw.__doc__
    assert module.TABLE in ("layers", "steps", "runs", "probes") and module.STEPS in ("ends", "all")
    assert "run" in module.COLUMNS and "status" in module.COLUMNS


def test_colours_and_sizes_stand_in_style_alone() -> None:
    for path in Path(figures.__path__[0]).glob("*.py"):
        if path.name != "style.py":
            words = [
                n.value
                for n in ast.walk(ast.parse(path.read_text()))
                if isinstance(n, ast.Constant)
            ]
            assert not [w for w in words if isinstance(w, str) and w.startswith("#")], path.name


def test_a_gradient_that_is_a_kernels_rounding_error_is_said_to_be_one(tmp_path: Path) -> None:
    for kernel in ("fused", "plain"):
        write_run(tmp_path, {"model.attention": kernel, "depth": 2}, steps=1)
    rows = stability.load(tmp_path, gradient.TABLE, gradient.COLUMNS, gradient.WHERE)
    assert not gradient.data(rows).attrs["remarks"]
    scores = rows["site"] == "scores"
    assert scores.any()
    (remark,) = gradient.data(rows.assign(absmax=rows["absmax"].mask(scores, 1e9))).attrs["remarks"]
    assert "fused" in remark and "1e+09" in remark and "plain" not in remark
    old = rows.assign(absmax=rows["absmax"].mask(scores, 1e9), **{"model.attention": None})
    assert gradient.data(old).attrs["remarks"]  # before there was a choice
    wide = rows.assign(absmax=rows["absmax"].mask(scores, 1e9), dtype="fp64")
    assert not gradient.data(wide).attrs["remarks"]
