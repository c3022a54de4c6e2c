"""The state of a training on disk: what it holds, and which file is no state of a run."""

import pytest
import torch

from stability.model import build
from stability.training import checkpoint
from stability.training.passes import Passes
from tiny import make_config


def built(**changes):
    return build.build(make_config({"train.lr": 0.01, "loss_scale": "dynamic", **changes}))


def train(built, steps):
    passes = Passes(built)
    for step in steps:
        passes.forward_backward(*passes.batch(step), step, built.recorder)
        passes.apply(step, built.loss_scale.scale)
        built.loss_scale.update(torch.tensor(False))


def same(one, other):
    return all(torch.equal(a, other[name]) for name, a in one.items())


def test_a_state_brings_another_model_to_where_it_was_taken(tmp_path):
    first, other = built(), built()
    train(first, range(2))
    train(other, range(3, 7))
    checkpoint.save(checkpoint.pack(first, 2, "mine"), tmp_path / "checkpoint.pt")
    state = checkpoint.load(tmp_path / "checkpoint.pt", "mine", "cpu")
    assert state is not None
    assert checkpoint.unpack(other, state) == 2
    assert int(other.loss_scale.good_steps) == 2
    for each in (first, other):
        train(each, [2])
    assert same(first.model.state_dict(), other.model.state_dict())


def test_the_start_is_what_step_0_started_from():
    trained = built()
    fresh = {name: value.clone() for name, value in trained.model.state_dict().items()}
    train(trained, range(2))
    assert not same(fresh, trained.model.state_dict())
    moved = {name: value.clone() for name, value in trained.model.state_dict().items()}
    state = checkpoint.start(trained)
    assert same(moved, trained.model.state_dict())
    assert checkpoint.unpack(trained, state) == 0
    assert same(fresh, trained.model.state_dict())
    assert int(trained.loss_scale.good_steps) == 0
    assert not trained.optimizer.inner.state


@pytest.mark.parametrize("content", [b"", b"torn", None], ids=["empty", "torn", "absent"])
def test_a_file_that_is_no_state_is_none(tmp_path, content):
    path = tmp_path / "checkpoint.pt"
    if content is not None:
        path.write_bytes(content)
    assert checkpoint.load(path, "mine", "cpu") is None


@pytest.mark.parametrize("held", [{"run": "another"}, {"step": 3}, [1, 2]])
def test_the_state_of_another_run_is_none(tmp_path, held):
    checkpoint.save(held, tmp_path / "checkpoint.pt")
    assert checkpoint.load(tmp_path / "checkpoint.pt", "mine", "cpu") is None
