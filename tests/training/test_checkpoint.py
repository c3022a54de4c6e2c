"""The state of a training on disk: what it holds, and which file is no state of a run."""

import errno

import pytest
import torch

from stability.model import build
from stability.training import checkpoint
from stability.training.passes import train_batch
from stability.training.step import TrainingState, training_step
from tiny import make_config


def built(**changes):
    return build.build(make_config({"train.lr": 0.01, "loss_scale": "dynamic", **changes}))


def train(built, steps):
    state = TrainingState(built)
    for step in steps:
        training_step(state, train_batch(built, step), record=False)


def same(one, other):
    return all(torch.equal(a, other[name]) for name, a in one.items())


def test_a_state_brings_another_model_to_where_it_was_taken(tmp_path):
    first, other = built(), built()
    train(first, range(2))
    train(other, range(3, 7))
    checkpoint.save(checkpoint.pack(first, 2, "mine"), tmp_path / "checkpoint.pt")
    state = checkpoint.load(tmp_path / "checkpoint.pt", "mine")
    assert state is not None
    assert checkpoint.unpack(other, state) == 2
    assert int(other.loss_scale.good_steps) == 2
    for each in (first, other):
        train(each, [2])
    assert same(first.model.state_dict(), other.model.state_dict())


def test_a_state_without_an_optimizer_changes_only_the_model_and_the_loss_scale():
    first, other = built(), built()
    train(first, range(2))
    state = checkpoint.pack(first, 2, "mine")
    del state["optimizer"]
    assert checkpoint.unpack(other, state) == 2
    assert same(first.model.state_dict(), other.model.state_dict())
    assert not any(inner.state for inner in other.optimizer.inner)


@pytest.mark.parametrize("content", [b"", b"torn", None], ids=["empty", "torn", "absent"])
def test_a_file_that_is_no_state_is_none(tmp_path, content):
    path = tmp_path / "checkpoint.pt"
    if content is not None:
        path.write_bytes(content)
    assert checkpoint.load(path, "mine") is None


def test_a_damaged_file_is_named_in_the_log(tmp_path, caplog):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"torn")
    assert checkpoint.load(path, "mine") is None
    assert "checkpoint.pt is damaged and is not used" in caplog.text


@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad disk"), MemoryError()])
def test_a_file_that_cannot_be_read_is_not_taken_for_a_damaged_one(tmp_path, monkeypatch, error):
    def load(*_, **__):
        raise error

    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(type(error)):
        checkpoint.load(tmp_path / "checkpoint.pt", "mine")


@pytest.mark.parametrize("held", [{"run": "another"}, {"step": 3}, [1, 2]])
def test_the_state_of_another_run_is_none(tmp_path, held):
    checkpoint.save(held, tmp_path / "checkpoint.pt")
    assert checkpoint.load(tmp_path / "checkpoint.pt", "mine") is None
