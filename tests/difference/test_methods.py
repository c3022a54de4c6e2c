"""The methods of a sweep against slow twins, straight from the runs' files."""

import json
import math
from statistics import mean, median, stdev

import numpy as np
import pandas as pd
import pytest

from stability.difference import methods_figure, methods_page
from stability.difference.command import main
from stability.difference.methods import Method, Point, compare_methods, over_seeds, rank
from stability.difference.run_measures import largest_over_smallest, spikes
from stability.results.atomic import Unreadable
from stability.results.fits import Interval
from synthetic import row_of, write_run, write_sweep

LRS = [1e-3, 1e-2]
T_OF_3_SEEDS = 4.302652729696142  # P(|T| <= t) = 0.95 with two degrees of freedom


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Three norms, two learning rates, three seeds; one seed of Post-LN diverges at lr 0.01."""
    path = tmp_path_factory.mktemp("sweeps") / "methods"
    axes = {"norm": ["pre", "post", "peri"], "train.lr": LRS, "seed": [0, 1, 2]}
    bad = {"norm": "post", "train.lr": 0.01, "seed": 2}
    for folder in write_sweep(path, axes):
        row = row_of(folder)
        if all(row[k] == v for k, v in bad.items()):
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
    write_run(path, bad, bad_step=30)
    return path


class Files:
    """A run's files, read by hand."""

    def __init__(self, folder):
        self.config = row_of(folder)
        self.state = json.loads((folder / "run.json").read_text())
        self.steps = pd.read_parquet(folder / "steps.parquet").sort_values("step")
        self.layers = pd.read_parquet(folder / "layers.parquet")

    @property
    def loss(self):
        first = self.steps["loss"].iloc[0]
        found = self.state["final_val_loss"]
        return first if self.state["status"] == "diverged" else min(found, first)

    def stream(self, kind, column):
        rows = self.layers[self.layers["step"] == self.layers["step"].max()]
        found = {}
        for row in rows.to_dict("records"):
            place = row["site"], row["kind"], row["sublayer"]
            if place == ("resid_post", kind, "mlp"):
                found[row["layer"]] = row[column]
        return [found[layer] for layer in sorted(found)]


def files(sweep, norm):
    runs = [Files(p.parent) for p in sorted(sweep.glob("*/run.json"))]
    return [run for run in runs if run.config["norm"] == norm]


def method_of(sweep, norm):
    label = {"pre": "Pre-LN", "post": "Post-LN", "peri": "Peri-LN"}[norm]
    (found,) = [m for m in compare_methods(sweep).methods if m.label == label]
    return found


def slow_interval(values):
    half = T_OF_3_SEEDS * stdev(values) / math.sqrt(3)
    return pytest.approx((mean(values), mean(values) - half, mean(values) + half))


@pytest.mark.parametrize("norm", ["pre", "post", "peri"])
def test_the_final_loss_is_that_of_the_best_learning_rate(sweep, norm):
    runs, found = files(sweep, norm), method_of(sweep, norm)
    of_lr = {lr: [r.loss for r in runs if r.config["train.lr"] == lr] for lr in LRS}
    best = min(LRS, key=lambda lr: mean(of_lr[lr]))
    assert found.best.lr == best
    assert tuple(found.best.loss) == slow_interval(of_lr[best])
    assert [p.lr for p in found.points] == LRS
    for point in found.points:
        assert tuple(point.loss) == slow_interval(of_lr[point.lr])


@pytest.mark.parametrize("norm", ["pre", "post", "peri"])
def test_sensitivity_is_the_mean_over_learning_rates_above_the_best(sweep, norm):
    runs, found = files(sweep, norm), method_of(sweep, norm)
    by_seed = []
    for seed in range(3):
        of_lr = {r.config["train.lr"]: r.loss for r in runs if r.config["seed"] == seed}
        by_seed.append(mean(of_lr.values()) - of_lr[found.best.lr])
    assert tuple(found.sensitivity) == slow_interval(by_seed)
    # the published number, from means over seeds
    assert found.sensitivity.mean == pytest.approx(
        mean(p.loss.mean for p in found.points) - found.best.loss.mean
    )


def test_a_seed_that_diverged_is_counted_and_has_the_loss_at_init(sweep):
    post, pre = method_of(sweep, "post"), method_of(sweep, "pre")
    assert (post.diverged, post.runs, pre.diverged, pre.runs) == (1, 6, 0, 6)
    bad = next(p for p in post.points if p.lr == 0.01)
    assert (bad.diverged, bad.seeds) == (1, 3)
    assert post.best.lr == 0.001


@pytest.mark.parametrize("norm", ["pre", "post", "peri"])
def test_numbers_of_the_stream_are_those_of_the_files(sweep, norm):
    found = method_of(sweep, norm)
    runs = [r for r in files(sweep, norm) if r.config["train.lr"] == found.best.lr]
    variances = [r.stream("act", "var") for r in runs]
    assert found.variance_growth == pytest.approx(median(v[-1] / v[0] for v in variances))
    for column, own in (("rms", found.evenness), ("token_rms_median", found.evenness_median)):
        sizes = [r.stream("grad", column) for r in runs]
        assert own == pytest.approx(median(max(s) / min(s) for s in sizes))
    logits = [r.layers.loc[r.layers["site"] == "scores", "absmax"].max() for r in runs]
    assert found.largest_logit == max(logits)
    assert found.parameters == runs[0].state["parameters"]


def test_a_step_costs_what_the_fastest_tenth_of_the_fastest_seed_take(tmp_path):
    path = tmp_path / "times"
    for seed in (0, 1):
        folder = write_run(path, {"seed": seed}, steps=41)
        steps = pd.read_parquet(folder / "steps.parquet")
        steps["step_s"] = [(1 + seed) * (t + 1) for t in reversed(range(41))]
        steps["record_s"] = [0.5 if t % 2 else None for t in range(41)]
        steps.to_parquet(folder / "steps.parquet")
    (found,) = compare_methods(path).methods
    times = sorted(41 - t - (0.5 if t % 2 else 0) for t in range(41))
    assert found.step_ms == pytest.approx(1000 * times[4])  # four of forty are faster


def slow_spikes(losses):
    found, before = 0, []
    for loss in losses:
        if not math.isfinite(loss):
            continue
        if len(before) >= 10 and loss > median(before[-201:]) + 0.1:
            found += 1
        before.append(loss)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_spikes_are_losses_above_the_median_of_the_201_before(seed):
    rng = np.random.default_rng(seed)
    losses = 3 * np.exp(-np.arange(700) / 100) + 0.08 * rng.standard_normal(700)
    losses[rng.integers(0, 700, 20)] += rng.uniform(-1, 2, 20)
    losses[rng.integers(0, 700, 5)] = np.nan
    losses[rng.integers(0, 700, 5)] = np.inf
    expected = slow_spikes(losses)
    assert expected > 5
    assert spikes(pd.Series(losses)) == expected


def test_a_spike_needs_ten_losses_before_it_and_more_than_a_tenth():
    assert spikes(pd.Series([1.0] * 9 + [5.0])) == 0
    assert spikes(pd.Series([1.0] * 10 + [5.0])) == 1
    assert spikes(pd.Series([1.0] * 10 + [1.09])) == 0
    assert spikes(pd.Series([2.0] * 101 + [1.0] * 101 + [1.2])) == 1  # the first 2.0 is forgotten
    assert spikes(pd.Series([2.0] * 102 + [1.0] * 100 + [1.2])) == 0


def test_spikes_are_counted_per_ten_thousand_steps_at_the_best_learning_rate(tmp_path):
    path = tmp_path / "spiky"
    for seed in (0, 1):
        folder = write_run(path, {"seed": seed}, steps=41)
        steps = pd.read_parquet(folder / "steps.parquet")
        steps.loc[20 + seed, "loss"] = 9.0
        steps.to_parquet(folder / "steps.parquet")
    (found,) = compare_methods(path).methods
    assert found.spikes_per_10k == pytest.approx(2 / 82 * 1e4)
    assert found.label == "spiky"


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0, 4.0, 2.0], 4.0), ([3.0], 1.0), ([1.0, 0.0], math.inf), ([1.0, math.nan], math.nan),
     ([], math.nan)],
)  # fmt: skip
def test_evenness_is_the_largest_over_the_smallest(values, expected):
    found = largest_over_smallest(pd.Series(values, dtype=float))
    assert found == pytest.approx(expected, nan_ok=True)


def with_loss(low, high):
    point = Point(1e-3, Interval((low + high) / 2, low, high), 0, 3)
    rest = (0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    return Method("m", "", (point,), point, Interval(0, 0, 0), 0, 3, *rest)


def test_places_are_told_only_where_intervals_part():
    rivals = [with_loss(1, 2), with_loss(1.5, 2.5), with_loss(2.2, 3), with_loss(4, 5)]
    assert [rank(m, rivals) for m in rivals] == [(1, 2), (1, 3), (2, 3), (4, 4)]
    assert rank(with_loss(math.nan, math.nan), rivals) is None


def test_one_seed_has_a_mean_without_an_interval_and_no_place(tmp_path):
    path = tmp_path / "single"
    write_sweep(path, {"norm": ["pre", "post"]})
    found = compare_methods(path).methods
    assert all(math.isnan(m.best.loss.low) and math.isfinite(m.best.loss.mean) for m in found)
    assert all(math.isnan(m.sensitivity.mean) for m in found)
    assert "place" not in methods_page.table(found)
    assert "sensitivity" not in methods_page.table(found)
    assert over_seeds([]) == pytest.approx((math.nan,) * 3, nan_ok=True)


def test_by_names_the_keys_of_a_method_and_the_others_make_settings(tmp_path):
    path = tmp_path / "settings"
    write_sweep(path, {"norm": ["pre", "post"], "depth": [2, 4], "seed": [0, 1]})
    found = compare_methods(path, ["norm"])
    assert list(found.settings) == ["L = 2", "L = 4"]
    assert [m.label for m in found.settings["L = 4"]] == ["Pre-LN", "Post-LN"]
    assert [m.label for m in compare_methods(path).methods] == [
        *("Pre-LN, L = 2", "Pre-LN, L = 4", "Post-LN, L = 2", "Post-LN, L = 4"),
    ]
    for key in ("seed", "train.lr", "init"):
        with pytest.raises(Unreadable, match=f"--by {key}: is not swept .* varies: norm, depth"):
            compare_methods(path, [key])


def test_unfinished_runs_are_left_out_and_said(tmp_path):
    path = tmp_path / "part"
    write_sweep(path, {"norm": ["pre"], "seed": [0, 1]})
    write_run(path, {"norm": "post", "seed": 0}, status="failed")
    found = compare_methods(path)
    assert [m.label for m in found.methods] == ["Pre-LN"]
    assert "1 of 3 runs failed" in found.remarks
    write_run(tmp_path / "none", {"norm": "post"}, status="failed")
    with pytest.raises(Unreadable, match="no run has ended"):
        compare_methods(tmp_path / "none")
    with pytest.raises(Unreadable, match="holds 2 sweeps, name one of them"):
        compare_methods(tmp_path)


def test_the_page_is_printed_and_written_with_figure_and_numbers(sweep, tmp_path, capsys):
    assert main([str(sweep), "--to", str(tmp_path / "new" / "page.md")]) == 0
    printed = capsys.readouterr().out
    found = compare_methods(sweep)
    for method in found.methods:
        (line,) = [x for x in printed.splitlines() if x.lstrip().startswith(f"{method.label} ")]
        assert f"{method.best.loss.mean:.3f} (" in line
        assert f"{method.diverged} of 6" in line
    page = (tmp_path / "new" / "page.md").read_text()
    assert "| Post-LN | " in page and "](page.png)" in page
    assert (tmp_path / "new" / "page.png").read_bytes().startswith(b"\x89PNG")
    numbers = pd.read_csv(tmp_path / "new" / "page.csv")
    assert len(numbers) == 6
    row = numbers[(numbers["method"] == "Post-LN") & (numbers["lr"] == 0.01)].iloc[0]
    assert (row["diverged"], row["seeds"]) == (1, 3)


def test_the_page_says_what_was_run(sweep):
    found = compare_methods(sweep, ["norm"])
    page = methods_page.markdown(found, "page.png")
    assert "- runs: `python -m stability.run -m norm=pre,post`\n" in page
    assert "- swept: Pre-LN, Post-LN, Peri-LN; lr = 0.001, lr = 0.01; seed = 0, seed = 1" in page
    assert "train.steps=41, train.batch_size=8, model.width=64" in page and "; 18 runs" in page
    assert f"- this page: `python -m stability.compare {sweep} --by norm`" in page
    assert all(fact in methods_page.html(found, b"") for fact in found.facts)


def test_html_holds_the_figure_and_the_default_lies_with_the_figures(sweep, tmp_path, capsys):
    assert main([str(sweep), "--to", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "data:image/png;base64," in page and "<td>Post-LN</td>" in page
    assert main([str(sweep)]) == 0
    assert (sweep / "figures" / "methods.md").exists()


def test_the_figure_has_every_mean_and_marks_divergence(sweep):
    found = compare_methods(sweep)
    (ax,) = methods_figure.draw(found).axes
    curves = [line for line in ax.lines if line.get_gid() == "mean"]
    assert [list(c.get_ydata()) for c in curves] == [
        [p.loss.mean for p in m.points] for m in found.methods
    ]
    crosses = [len(line.get_xdata()) for line in ax.lines if line.get_gid() == "diverged"]
    assert crosses == [0, 1, 0]


def test_many_methods_have_a_panel_each_and_settings_have_one_otherwise(tmp_path):
    path = tmp_path / "many"
    axes = {"norm": ["pre", "post"], "depth": [1, 2, 3, 4, 5], "train.lr": LRS}
    write_sweep(path, axes, steps=3, every=2)

    def gids(figure):
        return [[line.get_gid() for line in ax.lines] for ax in figure.axes]

    found = gids(methods_figure.draw(compare_methods(path)))
    assert [(of.count("mean"), of.count("other")) for of in found] == [(1, 10)] * 10
    by_depth = gids(methods_figure.draw(compare_methods(path, ["norm"])))
    assert [(of.count("mean"), of.count("other")) for of in by_depth] == [(2, 0)] * 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--by", "depth"], "--by depth: is not swept"),
        (["--tolerance", "0"], "--tolerance: compares two runs or sweeps: name B"),
        (["--stat", "act.rms"], "--stat: compares two runs or sweeps: name B"),
    ],
)
def test_options_without_effect_are_refused_in_a_line(sweep, words, said, capsys):
    assert main([str(sweep), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert main([str(sweep), str(sweep), "--by", "norm"]) == 2
    assert "--by: is for one sweep" in capsys.readouterr().err


def test_a_page_of_another_kind_is_refused(sweep, capsys):
    with pytest.raises(SystemExit):
        main([str(sweep), "--to", "page.txt"])
    assert "page.txt: must end in .md or .html" in capsys.readouterr().err
