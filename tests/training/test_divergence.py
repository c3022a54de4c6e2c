"""Which steps are bad, whose updates are left out, and when a run has diverged."""

import math

import pytest
import torch

from stability.parts.precision import LossScale
from stability.training.divergence import judge

FINE, BAD_LOSS, BAD_NORM = (1.0, 1.0), (math.nan, 1.0), (1.0, math.inf)
CPU = torch.device("cpu")


def judged(step, policy, scale, diverged=False):
    """Of one step: bad, left out, and whether the run has diverged."""
    flag = torch.tensor(diverged)
    loss, norm = (torch.tensor(value) for value in step)
    return (*map(bool, judge(loss, norm, scale, policy, flag)), bool(flag))


TABLE = [
    *(
        ("stop", "none", *row)
        for row in [(FINE, 0, 0, 0), (BAD_LOSS, 1, 1, 1), (BAD_NORM, 1, 1, 1)]
    ),
    *(
        ("skip", "none", *row)
        for row in [(FINE, 0, 0, 0), (BAD_LOSS, 1, 1, 0), (BAD_NORM, 1, 1, 0)]
    ),
    *(
        ("continue", "none", *row)
        for row in [(FINE, 0, 0, 0), (BAD_LOSS, 1, 0, 0), (BAD_NORM, 1, 0, 0)]
    ),
    *(
        ("stop", "dynamic", *row)
        for row in [(FINE, 0, 0, 0), (BAD_LOSS, 1, 1, 1), (BAD_NORM, 1, 1, 0)]
    ),
    *(("skip", "dynamic", *row) for row in [(BAD_LOSS, 1, 1, 0), (BAD_NORM, 1, 1, 0)]),
]


@pytest.mark.parametrize(("policy", "setting", "step", "bad", "left_out", "diverged"), TABLE)
def test_a_step_is_judged_by_loss_gradient_and_policy(
    policy, setting, step, bad, left_out, diverged
):
    found = judged(step, policy, LossScale(setting, CPU))
    assert found == (bad, left_out, diverged)


def test_a_run_that_has_diverged_updates_no_more():
    assert judged(FINE, "stop", LossScale("none", CPU), diverged=True) == (False, True, True)


def test_a_dynamic_scale_that_falls_below_1_helps_no_more():
    scale = LossScale("dynamic", CPU)
    scale.scale.fill_(2.0)
    assert judged(BAD_NORM, "stop", scale) == (True, True, False)
    assert scale.scale == 1.0
    assert judged(BAD_NORM, "stop", scale) == (True, True, True)


@pytest.mark.parametrize("policy", ["stop", "skip", "continue"])
def test_every_bad_step_halves_a_dynamic_scale_and_leaves_a_constant_one(policy):
    for setting, wanted in (("dynamic", LossScale.initial / 2), (256.0, 256.0)):
        scale = LossScale(setting, CPU)
        judged(BAD_NORM, policy, scale)
        assert scale.scale == wanted
