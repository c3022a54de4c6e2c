"""One step: a function of state and batch, and what a step that is not finite leaves as it was."""

from itertools import pairwise

import pytest
import torch

from recorded_rows import poison
from stability.config.names import Key
from stability.model import build
from stability.training.passes import train_batch
from stability.training.replayer import Replayer
from stability.training.step import TrainingState, training_step
from tiny import make_config, run


def state_of(changes=None, **over):
    return TrainingState(build.build(make_config(changes, **over)))


def weights(built):
    return {name: value.clone() for name, value in built.model.state_dict().items()}


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_the_same_state_and_batch_give_the_same_step_recorded_or_not(dtype):
    results, states = [], []
    for record in (True, False):
        state = state_of({"model.dropout": 0.2}, dtype=dtype)
        results.append(training_step(state, train_batch(state.built, 0), record))
        states.append(weights(state.built))
    assert results[0].numbers() == results[1].numbers()
    assert same(*states)
    assert results[0].recorded is not None and results[1].recorded is None


def test_a_step_that_is_not_recorded_does_not_touch_the_recorder(monkeypatch):
    state = state_of()
    monkeypatch.setattr(state.built.recorder, "pass_done", pytest.fail)
    assert training_step(state, train_batch(state.built, 0), False).recorded is None


def bad_at(state, step):
    """Make steps up to this one, whose gradient is not finite, and two more; their numbers."""
    passes = iter(range(100))

    def hook(module, args, out):
        if next(passes) == step:
            out.register_hook(poison)

    state.built.model.sites()[Key(1, "mlp", "branch_out")].register_forward_hook(hook, prepend=True)
    before, numbers = [], []
    for number in range(step + 3):
        before.append(weights(state.built))
        numbers.append(training_step(state, train_batch(state.built, number), False).numbers())
    return numbers, [*before, weights(state.built)]


def test_under_stop_every_update_from_a_bad_step_on_is_left_out():
    numbers, moved = bad_at(state_of(norm_type="batchnorm"), 1)
    assert [n.bad for n in numbers] == [0, 1, 0, 0]
    assert [n.skipped for n in numbers] == [n.diverged for n in numbers] == [0, 1, 1, 1]
    assert not same(moved[0], moved[1])
    assert same(moved[1], moved[2]) and same(moved[1], moved[4])


def test_under_skip_only_the_update_of_the_bad_step_is_left_out():
    numbers, moved = bad_at(state_of(on_nonfinite="skip"), 1)
    assert [n.skipped for n in numbers] == [0, 1, 0, 0]
    assert not any(n.diverged for n in numbers)
    kept = [same(before, after) for before, after in pairwise(moved)]
    assert kept == [False, True, False, False]


def test_under_continue_every_update_is_made():
    numbers, moved = bad_at(state_of(on_nonfinite="continue"), 1)
    assert not any(n.skipped or n.diverged for n in numbers)
    assert numbers[1].bad and numbers[3].bad
    assert not all(value.isfinite().all() for value in moved[2].values())


def test_under_a_dynamic_scale_a_bad_step_halves_it_and_is_left_out():
    state = state_of(loss_scale="dynamic", on_nonfinite="stop")
    numbers, moved = bad_at(state, 1)
    assert [n.loss_scale for n in numbers] == [2.0**16] * 2 + [2.0**15] * 2
    assert [n.skipped for n in numbers] == [0, 1, 0, 0]
    assert not any(n.diverged for n in numbers)
    assert same(moved[1], moved[2])


def test_a_replayer_comes_to_the_weights_that_the_training_had(tmp_path):
    config = make_config({"train.steps": 5, "model.dropout": 0.1, "train.clip": 0.5})
    trained = run(config, tmp_path).built
    replayer = Replayer(build.build(config))
    replayer.advance(2)
    replayer.advance(5)
    assert same(weights(trained), weights(replayer.built))
