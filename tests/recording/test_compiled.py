"""A compiled model records what an eager one records, in one graph per form of a block."""

import math
import shutil
from collections.abc import Iterator
from functools import partialmethod

import pytest
import torch
from torch import nn

from recorded_rows import assert_equal, by_key, drop
from stability.model.compile import COMPILED_VARIANTS
from tiny import Ran, make_config, run

FORMS = 2
"""Graphs of a block: a recorded step and one that is not; validation runs eagerly."""

BRIEF = {"record.every": 2, "train.steps": 3, "optimizer": "sgd"}
"""A recorded step, one that is not, and the last; SGD, since Adam magnifies rounding."""


@pytest.fixture
def counters(monkeypatch) -> Iterator[dict]:
    """Dynamo's counters, from zero. The graphs are run as they were captured, which is quick."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))
    yield counters
    torch._dynamo.reset()


def both(tmp_path, changes=None, **over) -> tuple[Ran, Ran]:
    eager, compiled = (
        run(make_config(BRIEF | (changes or {}), compile=c, **over), tmp_path / str(c))
        for c in (False, True)
    )
    return eager, compiled


@pytest.mark.filterwarnings("default")  # torch's own, about its compiler
@pytest.mark.parametrize(
    ("changes", "over"),
    [
        ({"train.accumulate": 2, "data.pad_share": 0.3}, {}),
        (
            {"model.position": "rope", "activation": "swiglu"},
            {"norm": "peri", "norm_type": "rmsnorm", "dtype": "fp64"},
        ),
        ({"model.attention": "math", "activation": "gelu_tanh"}, {}),
        ({}, {"norm": "residual"}),
    ],
    ids=["pre in parts", "peri with rope", "math attention", "two streams"],
)
def test_lesson_03_compiled_and_eager_rows_agree_without_a_graph_break(
    tmp_path, counters, changes, over
):
    eager, compiled = both(tmp_path, changes, **over)
    assert not counters["graph_break"]
    deeper = make_config(BRIEF | changes, compile=True, **(over | {"depth": 3}))
    run(deeper, tmp_path / "deeper")
    assert counters["stats"]["unique_graphs"] <= FORMS  # all depths share them
    assert len(eager.layers) == len(compiled.layers)
    noise = [r.layers.site.eq("k.bias") for r in (eager, compiled)]
    one, other = (by_key(drop(r, n)) for r, n in zip((eager, compiled), noise, strict=True))
    counted = ["zeros", "subnormal", "near_max"]  # rounding may move an entry across a border
    one[counted], other[counted] = 0, 0
    assert_equal(one, other, rel=1e-4)
    assert compiled.steps.loss.tolist() == pytest.approx(eager.steps.loss.tolist(), rel=1e-5)


@pytest.mark.filterwarnings("default")
def test_where_a_constant_depends_on_the_depth_there_are_two_sets_of_graphs_for_all_depths(
    tmp_path, counters
):
    for depth in (1, 2, 4):
        config = make_config(BRIEF, compile=True, depth=depth, norm="deepnorm")
        run(config, tmp_path / str(depth))
    assert counters["stats"]["unique_graphs"] <= 2 * FORMS
    assert not counters["graph_break"]


@pytest.mark.filterwarnings("default")
def test_recording_changes_nothing_in_a_compiled_model_either(tmp_path, counters):
    weights = []
    for every in (1, 3):
        config = make_config({"record.every": every, "train.steps": 4}, compile=True)
        weights.append([*run(config, tmp_path / str(every)).built.model.parameters()])
    for p, q in zip(*weights, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


@pytest.mark.filterwarnings("default")
def test_a_compiled_run_survives_a_skipped_step_between_two_recordings(tmp_path, counters):
    """Looking for the first bad site takes a second recorder, which must leave the first alone."""
    changes = {"record.every": 4, "train.steps": 6, "optimizer": "sgd"}

    def prepare(built) -> None:
        passes = iter(range(100))

        def spoil(module, args, out):
            if out.requires_grad and next(passes) == 2:
                out.register_hook(lambda grad: grad * math.nan)

        built.model.embed.register_forward_hook(spoil)

    ran = run(make_config(changes, compile=True, loss_scale="dynamic"), tmp_path, prepare)
    assert ran.info["status"] == "completed"
    assert ran.steps.skipped.tolist() == [False, False, True, False, False, False]
    assert ran.steps.loss_scale.tolist() == [2.0**16] * 3 + [2.0**15] * 3
    assert ran.layers.step.unique().tolist() == [0, 4, 5]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler's CPU backend needs g++")
def test_code_that_the_compiler_made_records_the_same(tmp_path):
    torch._dynamo.reset()
    eager, compiled = both(tmp_path, {"train.steps": 1})
    one, other = (by_key(drop(r, r.layers.site.eq("k.bias"))) for r in (eager, compiled))
    counted = ["zeros", "subnormal", "near_max"]
    one[counted], other[counted] = 0, 0
    assert_equal(one, other, rel=1e-4)
    torch._dynamo.reset()


def test_one_process_may_hold_many_compiled_variants():
    assert COMPILED_VARIANTS >= 64
