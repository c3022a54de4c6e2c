"""`record(..., also=writer)`: the curated numbers of each step reach a dashboard as they come."""

import math

import pytest
import torch

import stability
import wandb_files
from external_loops import LAYERS, batch, chain, state, steps
from stability.results.curated import curated


def train(model, number, says=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(number):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        if says:
            says(step, loss)


def wanted(folder):
    """Step -> the curated numbers, from what `load` gives."""
    layers = dict(iter(stability.load(folder).groupby("step")))
    found = {}
    for row in steps(folder).astype(object).to_dict("records"):
        known = {name: value for name, value in row.items() if value == value}
        numbers = curated(layers.get(row["step"]), known)
        found[row["step"]] = {f"stability/{name}": value for name, value in numbers.items()}
    return found


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    back = {}
    for tag in found.Tags()["scalars"]:
        for event in found.Scalars(tag):
            back.setdefault(event.step, {})[tag] = event.value
    return back


def test_tensorboard_has_every_number_beside_those_of_the_loop(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    model = chain()
    with SummaryWriter(str(tmp_path / "events")) as writer:
        options = {"every": 2, "also": writer}
        with stability.record(model, tmp_path / "run", LAYERS, **options) as recording:

            def says(step, loss):
                writer.add_scalar("loss", -1.0, step)
                recording.log(loss=loss, lr=0.1)

            train(model, 5, says)
    back = events(tmp_path / "events")
    assert [back[step].pop("loss") for step in range(5)] == [-1.0] * 5
    right = wanted(tmp_path / "run")
    assert set(back) == set(right) == {0, 1, 2, 3, 4}
    for step, numbers in right.items():
        assert back[step] == pytest.approx(numbers, rel=1e-6)
    assert {"stability/loss", "stability/act_rms/middle", "stability/grad_norm"} <= set(back[4])
    assert "stability/act_rms/middle" not in back[3]


@pytest.mark.parametrize("explicit", [True, False])
def test_wandb_has_every_number_beside_those_of_the_loop(tmp_path, monkeypatch, explicit):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    quiet = wandb.Settings(console="off", silent=True, x_disable_meta=True, x_disable_stats=True)
    model = chain()
    with (
        wandb.init(dir=str(tmp_path), settings=quiet) as run,
        stability.record(model, tmp_path / "run", LAYERS, also=run) as recording,
    ):

        def says(step, loss):
            run.log({"mine": float(step)}, **({"step": step} if explicit else {}))
            recording.log(loss=loss)

        train(model, 4, says)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    history = wandb_files.history(file).values()
    assert [row["mine"] for row in history if "mine" in row] == [0.0, 1.0, 2.0, 3.0]
    back = {row["stability/step"]: row for row in history if "stability/step" in row}
    right = wanted(tmp_path / "run")
    assert set(back) == set(right) == {0, 1, 2, 3}
    for step, numbers in right.items():
        assert {name: back[step][name] for name in numbers} == pytest.approx(numbers)
    metrics = [r.metric for r in wandb_files.records(file) if r.HasField("metric")]
    assert {m.name: m.step_metric for m in metrics}["stability/loss"] == "stability/step"


class Failing:
    """A writer whose disk is full from some step on."""

    def __init__(self, at):
        self.at, self.calls = at, []

    def add_scalar(self, tag, scalar_value, global_step):
        self.calls.append((tag, global_step))
        if global_step >= self.at:
            raise OSError(28, "No space left on device")


def test_a_writer_that_fails_is_one_warning_and_the_recording_goes_on(tmp_path):
    model, plain = chain(), chain()
    writer = Failing(at=2)
    with (
        pytest.warns(RuntimeWarning, match="No space left") as warned,
        stability.record(model, tmp_path / "run", LAYERS, also=writer),
    ):
        train(model, 6)
    train(plain, 6)
    assert len(warned) == 1
    assert [step for _, step in writer.calls if step >= 2] == [2]
    assert steps(tmp_path / "run").step.tolist() == list(range(6))
    found = state(tmp_path / "run")
    assert found["status"] == "completed"
    assert len(found["notes"]) == 1 and "No space left" in found["notes"][0]
    assert all(
        torch.equal(*pair) for pair in zip(model.parameters(), plain.parameters(), strict=True)
    )


def test_a_step_that_is_not_finite_reaches_the_writer_with_its_layers(tmp_path):
    model = chain()
    seen = {}

    class Writer:
        def add_scalar(self, tag, scalar_value, global_step):
            seen.setdefault(global_step, {})[tag] = scalar_value

    with stability.record(model, tmp_path / "run", LAYERS, every=10, ring=2, also=Writer()):

        def says(step, loss):
            if step == 3:
                model.layers[0].weight.data[0] = math.nan

        train(model, 6, says)
    assert set(seen) == set(range(6))
    assert seen[4]["stability/nonfinite_share"] > 0
    assert "stability/nonfinite_share" in seen[0] and "stability/nonfinite_share" not in seen[3]


def test_what_is_no_writer_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match="list has neither add_scalar"):
        stability.record(chain(), tmp_path / "run", LAYERS, also=[])
    assert not (tmp_path / "run").exists()
