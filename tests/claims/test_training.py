"""Measures of training against numbers that were put in."""

import math

import numpy as np
import pandas as pd
import pytest

from measure_rows import joined, measure, probes, reason, runs
from stability.claims.measures import measures


def test_losses_are_compared_by_axis_and_a_run_that_diverged_guesses():
    found = runs(
        {"depth": 6, "final_val_loss": 2.5},
        {"run": "b", "depth": 24, "final_val_loss": 1.0},
        {"run": "c", "depth": 48, "status": "diverged", "final_val_loss": None},
        {"run": "d", "depth": 96, "final_val_loss": None},
    )
    given = {"runs": found, "axis": "depth"}
    assert measure("loss_difference", **given, of=6, to=24) == pytest.approx(1.5)
    assert measure("loss_difference", **given, of=48, to=24) == pytest.approx(math.log(20) - 1)
    assert reason("loss_difference", **given, of=96, to=24) == "no final_val_loss"
    assert reason("loss_difference", **given, of=7, to=24) == "no run with depth = 7"
    assert measure("final_loss", runs=found[:1]) == 2.5


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 0),
        ({"learned": False}, 1),
        ({"learned": None}, 1),
        ({"status": "diverged"}, 1),
        ({"status": "diverged", "learned": False}, 1),
    ],
)
def test_a_run_has_learned_if_it_completed_and_says_so(change, expected):
    assert measure("not_learned", runs=runs(change)) == expected
    both = runs({"depth": 6} | change, {"run": "b", "depth": 24, "learned": expected != 0})
    assert measure("not_learned_at", runs=both, axis="depth", of=6) == expected


def test_a_gap_is_between_validation_and_the_mean_of_the_last_training_losses():
    def losses(run, values):
        return pd.DataFrame({"run": run, "step": range(len(values)), "loss": values})

    steps = losses("a", [9.0, 1.5, 0.5])[::-1]
    given = {"runs": runs(), "steps": steps}
    assert measure("evaluation_gap", **given, last=2) == pytest.approx(1.0)
    assert measure("evaluation_gap", **given) == pytest.approx(2 - 11 / 3)
    steps = joined([losses("a", [1.5]), losses("b", [0.9])])
    both = runs({"depth": 6}, {"run": "b", "depth": 24, "final_val_loss": 1.0})
    given = {"runs": both, "steps": steps, "axis": "depth", "of": 6, "to": 24}
    assert measure("excess_gap", **given) == pytest.approx(0.5 - 3 * 0.1)
    assert measure("excess_gap", **given, factor=1.0) == pytest.approx(0.5 - 0.1)


def test_a_lesions_rise_is_over_what_the_intact_net_has_learned():
    values = [("intact", 1.0), ("rise", 0.2), ("rise", 0.6), ("rise", 9.0)]
    found = probes(*({"probe": "lesion", "item": item, "value": v} for item, v in values))
    assert measure("lesion_rise", probes=found, runs=runs()) == pytest.approx(0.6 / 2)
    guessing = runs({"data.unigram_entropy": 1.0})
    assert reason("lesion_rise", probes=found, runs=guessing) == "nothing was learned"


def test_seconds_of_a_step_are_compared_by_their_medians():
    seconds = {"a": [2.0, 3.0, 100.0], "b": [2.0, 1.0, 0.5]}
    steps = joined([pd.DataFrame({"run": run, "step_s": s}) for run, s in seconds.items()])
    both = runs({"depth": 6}, {"run": "b", "depth": 24})
    given = {"runs": both, "steps": steps, "axis": "depth"}
    assert measure("step_seconds_ratio", **given, of=6, to=24) == 3.0
    assert measure("step_seconds_ratio", **given, of=24, to=6) == pytest.approx(1 / 3)


def test_means_of_noise_are_one_and_bytes_are_compared_between_runs_of_a_seed():
    width = 400
    x = np.random.default_rng(0).standard_normal((2000, width))
    ratio = float((abs(x.mean(1)) / x.std(1)).mean())
    runs = pd.DataFrame(
        {"run": ["a", "b"], "norm_type": ["layernorm", "rmsnorm"], "model.width": width}
    )
    rows = [("a", "token_mean", ratio), ("a", "norm_bytes", 10.0), ("b", "norm_bytes", 25.0)]
    probes = pd.DataFrame(rows, columns=["run", "probe", "value"])
    found = measures()
    assert found["mean_over_noise"](probes=probes[:1], runs=runs[:1]) == pytest.approx(1, rel=0.05)
    given = {"axis": "norm_type", "of": "rmsnorm", "to": "layernorm"}
    assert found["norm_bytes_ratio"](probes=probes, runs=runs, **given) == 2.5
