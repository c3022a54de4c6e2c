"""A run that breaks is repeated on a model of its own, after the training has let go of its."""

import gc
import math
import weakref

import pytest
import torch

from recorded_rows import poison
from stability.config.names import KINDS, SITES, Key
from stability.model import build
from stability.results.schema import FAILURE_FILE
from stability.training import failure_replay, job
from stability.training.failure import Failure, describe, loss_place
from stability.training.replayer import Replayer
from tiny import make_config, run

BLOWS_UP = {"optimizer": "sgd", "train.lr": 1e30, "train.steps": 9}
FAULT = {"layer": 1, "sublayer": "mlp", "site": "branch_out", "kind": "act"}


def only_once(step):
    """A fault of the first model that is built, at one pass: it cannot be repeated."""
    models = iter(range(10**6))

    def prepare(built):
        passes = iter(range(10**6))

        def hook(module, args, out):
            return poison(out) if next(passes) == step else None

        if next(models) == 0:
            built.model.sites()[Key(1, "mlp", "branch_out")].register_forward_hook(hook, prepend=1)

    return prepare


def test_a_fault_that_does_not_come_again_is_named_from_what_was_recorded(tmp_path):
    ran = run(make_config({"train.steps": 6}), tmp_path, only_once(step=2))
    assert ran.info["status"] == "diverged"
    assert ran.info["first_bad"] == {"step": 2, **FAULT}
    assert torch.load(tmp_path / FAILURE_FILE, weights_only=True)["step"] == 2


def test_a_fault_that_nothing_recorded_is_one_of_the_loss(tmp_path):
    ran = run(make_config({"train.steps": 6, "record.every": 5}), tmp_path, only_once(step=2))
    assert ran.info["status"] == "diverged"
    assert ran.info["first_bad"] == loss_place(ran.built.config, 2)
    assert ran.layers.step.unique().tolist() == [0, 1, 2]


def test_the_training_lets_go_of_its_model_before_another_is_built(tmp_path, monkeypatch):
    trained, alive = [], []

    def build_and_refer(config):
        made = build.build(config)
        trained.append(weakref.ref(made.model))
        return made

    def build_after(config):
        alive.append(trained[0]())
        return build.build(config)

    monkeypatch.setattr(job, "build", build_and_refer)
    monkeypatch.setattr(failure_replay, "build", build_after)
    info = job.execute(make_config({**BLOWS_UP, "record.every": 5}, norm="none"), tmp_path)
    assert info["status"] == "diverged"
    assert alive == [None]
    gc.collect()


@pytest.mark.parametrize("every", [1, 5])
def test_a_device_without_room_for_another_model_is_no_failure(tmp_path, monkeypatch, every):
    def no_room(self, built):
        raise torch.OutOfMemoryError("CUDA out of memory")

    config = make_config({**BLOWS_UP, "record.every": every}, norm="none")
    with monkeypatch.context() as patched:
        patched.setattr(Replayer, "__init__", no_room)
        ran = run(config, tmp_path / "full")
    wanted = run(config, tmp_path / "free").info["first_bad"]
    assert ran.info["status"] == "diverged"
    at, found = wanted["step"], ran.info["first_bad"]
    assert found == (wanted if every == 1 else loss_place(config, at))
    kept, same = (
        torch.load(tmp_path / n / FAILURE_FILE, weights_only=True) for n in ("full", "free")
    )
    assert all(torch.equal(value, same["model"][name]) for name, value in kept["model"].items())
    assert torch.equal(kept["x"], same["x"]) and kept["step"] == at


def test_steps_that_are_written_already_are_not_made_again(tmp_path, monkeypatch):
    made = []
    advance = Replayer.advance
    monkeypatch.setattr(Replayer, "advance", lambda *args: made.append(args) or advance(*args))
    changes = {"dtype": "fp16", "optimizer": "sgd", "train.lr": 30.0, "train.steps": 60}
    for every in (1, 50):
        ran = run(make_config({**changes, "record.every": every}, depth=3), tmp_path / str(every))
        assert ran.info["first_bad"]["step"] > 1
        assert len(made) == (every == 50)


def test_a_checkpoint_of_weights_that_are_broken_already_is_not_gone_back_to(tmp_path):
    changes = {"dtype": "fp16", "optimizer": "sgd", "train.steps": 6, "train.lr": 1e9}
    ran = run(make_config({**changes, "train.checkpoint_every": 1}), tmp_path)
    assert ran.info["status"] == "diverged"
    assert (ran.info["first_bad"]["kind"], ran.info["first_bad"]["step"]) == ("update", 0)
    kept = torch.load(tmp_path / FAILURE_FILE, weights_only=True)
    assert kept["step"] == 0
    assert all(p.isfinite().all() for p in kept["model"].values())


def test_a_skipped_step_between_recordings_is_named_and_the_training_is_left_alone(tmp_path):
    def prepare(built):
        passes = iter(range(10**6))

        def hook(module, args, out):
            if out.requires_grad and (built.model is not models[0] or next(passes) == 2):
                out.register_hook(poison)

        models.append(built.model)
        site = built.model.sites()[Key(1, "attn", "branch_out")]
        site.register_forward_hook(hook, prepend=True)

    rans = []
    for every in (1, 5):
        models = []
        changes = {"train.steps": 6, "record.every": every, "on_nonfinite": "skip"}
        config = make_config(changes, norm_type="batchnorm")
        rans.append(run(config, tmp_path / str(every), prepare))
        assert rans[-1].info["status"] == "completed"
        assert rans[-1].steps.skipped.tolist() == [False, False, True, False, False, False]
    where = {"step": 2, "layer": 1, "sublayer": "attn", "site": "branch_out", "kind": "grad"}
    assert [ran.info["first_bad"] for ran in rans] == [where, where]
    one, other = (ran.built.model.state_dict() for ran in rans)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_loss_is_the_place_where_no_tensor_is_bad():
    place = loss_place(make_config(depth=3), 7)
    assert place == {"step": 7, "layer": 3, "sublayer": "head", "site": "loss", "kind": "act"}
    assert describe(place) == "act at layer 3, head, loss"


def test_what_a_failure_holds_is_a_copy(tmp_path):
    built = build.build(make_config(loss_scale=8.0))
    failure = Failure.of(built, 3, "run", loss_scale=16.0)
    assert (failure.step, failure.weights_broken, failure.validating) == (3, False, False)
    assert float(failure.saved["loss_scale"]["scale"]) == 16.0
    assert float(built.loss_scale.scale) == 8.0
    with torch.no_grad():
        for p in built.model.parameters():
            p.fill_(math.nan)
    assert all(value.isfinite().all() for value in failure.saved["model"].values())
    assert Failure.of(built, 3, "run").weights_broken
    assert Failure.of(built, 3, "run").validating


@pytest.mark.parametrize(
    ("changes", "every"),
    [
        ({}, True),
        ({"record.kinds": list(KINDS), "record.sites": list(SITES)[::-1]}, True),
        ({"record.kinds": ["act"]}, False),
        ({"record.sites": ["resid_pre"]}, False),
    ],
)
def test_a_step_that_was_seen_in_full_is_not_repeated_to_name_its_first_bad_tensor(
    monkeypatch, changes, every
):
    config = make_config(changes)
    assert failure_replay.records_all(config) is every
    built = []

    def refuse(config):
        built.append(config)
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(failure_replay, "build", refuse)
    seen = {"step": 2, **FAULT}
    failure = Failure(step=2, saved={}, weights_broken=False, seen=seen, validating=False)
    assert failure_replay.name_first_bad(failure, config) == seen
    assert len(built) == (0 if every else 1)
    unseen = Failure(step=2, saved={}, weights_broken=False, seen=None, validating=False)
    assert failure_replay.name_first_bad(unseen, config) == loss_place(config, 2)
    assert len(built) == (1 if every else 2)


def breaking_update(at):
    """A fault of every model: the update of one step breaks a weight."""

    def prepare(built):
        make = built.optimizer.step

        def broken(step, found_inf):
            make(step, found_inf)
            if step == at:
                with torch.no_grad():
                    built.optimizer.params[0].view(-1)[0] = math.inf

        built.optimizer.step = broken

    return prepare


@pytest.mark.parametrize("ring", [0, 3])
@pytest.mark.parametrize("checkpoint_every", [0, 1])
def test_an_update_in_the_middle_is_repeated_from_the_weights_that_it_found(
    tmp_path, ring, checkpoint_every
):
    changes = {"train.steps": 6, "record.every": 4, "record.ring": ring}
    changes["train.checkpoint_every"] = checkpoint_every
    ran = run(make_config(changes), tmp_path / "broken", breaking_update(at=2))
    assert ran.info["status"] == "diverged"
    assert (ran.info["first_bad"]["step"], ran.info["first_bad"]["kind"]) == (2, "update")
    kept = torch.load(tmp_path / "broken" / FAILURE_FILE, weights_only=True)
    whole = run(make_config({"train.steps": 2}), tmp_path / "whole")
    assert kept["step"] == 2
    for name, weight in whole.built.model.state_dict().items():
        assert torch.equal(kept["model"][name], weight), name
