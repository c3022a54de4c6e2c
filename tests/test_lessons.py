"""What tools of this kind got wrong elsewhere, and the test that it is not so here.

Most lessons are tests beside the module that had to learn them, named ``test_lesson_NN_...`` or
listed here by name. A test that goes must leave another in its place.
"""

import ast
import time
from pathlib import Path

import pytest

from stability.figures import gradient_map, variance_map
from synthetic import numbers, write_run

HERE = Path(__file__).parent

LESSONS = {
    1: "a norm name matching no branch trained a model without attention or MLP",
    2: "DeepNorm's init skipped V; fused QKV was initialised as one matrix with the wrong fan",
    3: "hooks attached after the first compiled call never fire",
    4: "module full-backward hooks break in-place ops and change tensor identity",
    5: "activation checkpointing fires hooks twice",
    6: "recorded gradients were multiplied by the loss scale",
    7: "the variance of merged parts had the wrong sign between them",
    8: "with accumulation, the wrong part of the batch was logged",
    9: "NaN and Inf were removed before logging, so that the layer looked healthy",
    10: "NaN was looked for only after the optimizer had spread it",
    11: "history was sampled to 500 points, values were printed as 0.0000",
    12: "a parquet file was unreadable after a crash",
    13: "a resumed run had rows off by n, lost lines, batches twice, other random numbers",
    14: "sweeps could not be resumed, shared a folder, and one failure ended the rest",
    15: "averages left out diverged seeds in silence",
    16: "thousands of charts, one per layer: the page froze",
    17: "watching everything doubled the step's time, and data were dropped",
    18: "default names collided, or were 300 characters of slashes and commas",
    19: "Adam's eps is larger than the gradients of a deep net's first layers",
}

ELSEWHERE = {
    12: [
        "results/test_parquet.py::test_a_kill_at_any_moment_loses_nothing_that_was_flushed",
        "sweep/test_resume.py::test_a_run_killed_at_random_moments_equals_an_undisturbed_one",
    ],
    13: ["sweep/test_resume.py::test_100_steps_equal_50_and_resume_50"],
    14: [
        "cli/test_plan.py::test_only_what_is_missing_runs_again",
        "cli/test_plan.py::test_the_name_that_nobody_gave_is_a_time_stamp_of_its_own",
        "sweep/test_pool.py::test_no_death_ends_the_sweep",
        "test_run.py::test_a_failed_run_is_listed_with_its_cause_and_the_exit_code_is_1",
    ],
    15: ["figures/test_variance.py::test_diverged_seeds_are_counted_and_named"],
    18: ["cli/test_plan.py::test_folder_names_are_short_unique_and_legal_everywhere"],
    19: [
        "figures/test_dynamic_range.py::test_dynamic_range_holds_extremes_and_the_limits_of_the_format"
    ],
}


def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


FILES = {str(p.relative_to(HERE)): p for p in HERE.rglob("test_*.py")}
ALL = {f"{file}::{name}" for file, path in FILES.items() for name in names_in(path)}


@pytest.mark.parametrize("number", LESSONS, ids=lambda n: f"{n:02d} {LESSONS[n]}")
def test_every_lesson_has_its_test(number):
    named = {name for name in ALL if f"::test_lesson_{number:02d}_" in name}
    listed = set(ELSEWHERE.get(number, []))
    assert named | listed
    assert listed <= ALL


def test_lesson_16_ninety_six_layers_are_one_heat_map_within_seconds(tmp_path):
    write_run(tmp_path, {"depth": 96})
    began = time.perf_counter()
    for module in (variance_map, gradient_map):
        rows = numbers(tmp_path, module)
        assert rows.frame["x"].max() == 96
        figure = module.draw(rows)
        assert len([ax for ax in figure.axes if ax.collections or ax.images]) <= 2  # map, colours
    assert time.perf_counter() - began < 20
