"""What goes wrong in one run stays in that run, and is named."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from stability import replay
from stability.results.schema import CHECKPOINT_FILE, FAILURE_FILE, RUN_FILE
from stability.training import job
from tiny import make_config, run

FAULTY = '''
import resource, signal
from stability.parts.placements import Pre


class Raises(Pre):
    """An exception in the second block."""

    def __call__(self, x, f, norm):
        if self.layer == 1 and hasattr(x, "backward"):  # not where the equation is only read
            raise RuntimeError("injected")
        return super().__call__(x, f, norm)


class MakesNaN(Pre):
    """A NaN in the branch that the second block's MLP adds."""

    def __call__(self, x, f, norm):
        y = super().__call__(x, f, norm)
        return y * float("nan") if self.layer == 1 and self.sublayer == "mlp" else y


class FillsTheDisk(Pre):
    """No file may grow beyond 2,000 bytes from here on: what a full disk or a quota does."""

    def __init__(self, depth, layer, sublayer):
        super().__init__(depth, layer, sublayer)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def __call__(self, x, f, norm):
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        return super().__call__(x, f, norm)
'''


@pytest.fixture
def faulty(tmp_path):
    """A folder with placements that break, for --config-dir."""
    folder = tmp_path / "mine"
    (folder / "norm").mkdir(parents=True)
    (folder / "faulty.py").write_text(FAULTY)
    for i, name in enumerate(("Raises", "MakesNaN", "FillsTheDisk")):
        yaml = f"label: {name}\norder: {50 + i}\nbuild: {{_target_: faulty.{name}}}\n"
        (folder / "norm" / f"{name.lower()}.yaml").write_text(yaml)
    return folder


def sweep(faulty, out, norms):
    small = ["depth=2", "model.width=16", "model.heads=2", "model.context=8", "train.steps=4"]
    where = [f"out={out}", "name=five", "--config-dir", str(faulty)]
    command = [sys.executable, "-m", "stability.run", f"norm={norms}", *small, *where]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def states(out):
    found = {}
    for path in (out / "five").glob(f"*/{RUN_FILE}"):
        state = json.loads(path.read_text())
        found[state["identity"]["choices"]["norm"]] = state
    return found


def test_an_exception_a_nan_and_a_full_disk_cost_only_their_own_runs(tmp_path, faulty):
    done = sweep(faulty, tmp_path / "out", "pre,raises,makesnan,fillsthedisk,post")
    found = states(tmp_path / "out")
    assert {n: s["status"] for n, s in found.items()} == {
        "pre": "completed",
        "post": "completed",
        "raises": "failed",
        "makesnan": "diverged",
        "fillsthedisk": "failed",
    }
    assert done.returncode == 1
    assert "injected" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert found["raises"]["error"] == "RuntimeError: injected"
    assert "too large" in found["fillsthedisk"]["error"]
    first = found["makesnan"]["first_bad"]
    assert first == {
        "step": 0, "layer": 1, "sublayer": "mlp", "site": "resid_post", "kind": "act",
    }  # fmt: skip


def test_the_same_command_finishes_what_failed(tmp_path, faulty):
    sweep(faulty, tmp_path / "out", "pre,raises,makesnan,fillsthedisk,post")
    before = states(tmp_path / "out")
    healed = (faulty / "faulty.py").read_text()
    healed = healed.replace('raise RuntimeError("injected")', "pass").replace("2000", "1 << 30")
    (faulty / "faulty.py").write_text(healed)
    done = sweep(faulty, tmp_path / "out", "pre,raises,makesnan,fillsthedisk,post")
    after = states(tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert after["raises"]["status"] == after["fillsthedisk"]["status"] == "completed"
    assert after["raises"]["error"] is None
    for name in ("pre", "post", "makesnan"):
        assert after[name] == before[name]


def test_weights_and_batch_of_the_last_good_step_are_kept(tmp_path):
    changes = {"train.lr": 1e30, "train.steps": 50}
    done = run(make_config(changes, norm="none"), tmp_path / "run")
    assert done.info["status"] == "diverged"
    step = done.info["first_bad"]["step"]
    kept = torch.load(tmp_path / "run" / FAILURE_FILE, weights_only=True)
    assert kept["step"] == step == done.steps.step.max() > 0
    batches = iter(range(step))
    stop = lambda: next(batches, None) is None  # noqa: E731
    job.execute(make_config(changes, norm="none"), tmp_path / "short", stop=stop)
    good = torch.load(tmp_path / "short" / CHECKPOINT_FILE, weights_only=True)["model"]
    assert all(torch.equal(kept["model"][name], good[name]) for name in good)


@pytest.mark.parametrize(("policy", "status"), [("skip", "completed"), ("continue", "diverged")])
def test_the_policy_on_non_finite_steps_is_a_knob(tmp_path, policy, status):
    changes = {"dtype": "fp16", "loss_scale": 2.0**24, "train.steps": 4}
    stopped = run(make_config(changes), tmp_path / "stop")
    assert (stopped.info["status"], len(stopped.steps)) == ("diverged", 1)
    done = run(make_config(changes | {"on_nonfinite": policy}), tmp_path / policy)
    assert done.info["status"] == status
    assert len(done.steps) == 4
    assert done.info["first_bad"]["step"] == 0
    assert done.steps.skipped.all() == (policy == "skip")


def test_a_skipped_step_leaves_the_running_statistics_as_they_were(tmp_path):
    changes = {"on_nonfinite": "skip", "train.steps": 9, "init.embed_std": 1e30}
    asked = iter([False, False, True])
    config = make_config(changes, norm_type="batchnorm")
    job.execute(config, tmp_path / "run", stop=lambda: next(asked))
    assert pd.read_parquet(tmp_path / "run" / "steps.parquet").skipped.tolist() == [True, True]
    kept = torch.load(tmp_path / "run" / CHECKPOINT_FILE, weights_only=True)["model"]
    running = [t for name, t in kept.items() if "running" in name]
    assert running
    assert all(torch.isin(t, torch.tensor([0.0, 1.0])).all() for t in running)


def diverging(**changes):
    """A run that breaks at a step which is not recorded, after steps that are not."""
    base = {"dtype": "fp16", "train.steps": 60, "record.every": 50, "train.lr": 0.3}
    return make_config(base | {"depth": 3, "optimizer": "sgd", "train.lr": 30.0} | changes)


def recorded(done):
    return sorted(done.layers.step.unique())


def test_a_ring_keeps_the_last_steps_at_full_detail(tmp_path):
    plain = run(diverging(), tmp_path / "plain")
    assert plain.info["status"] == "diverged"
    last = plain.info["first_bad"]["step"]
    ringed = run(diverging(**{"record.ring": 3}), tmp_path / "ring")
    assert recorded(ringed) == sorted({0, *range(max(0, last - 2), last + 1)})


def test_without_a_ring_the_steps_since_the_checkpoint_run_again(tmp_path):
    plain = run(diverging(), tmp_path / "plain")
    last = plain.info["first_bad"]["step"]
    every = max(1, last - 1)
    again = run(diverging(**{"train.checkpoint_every": every}), tmp_path / "again")
    kept = set(range(last - last % every if last >= every else 0, last + 1)) if last else {0}
    assert set(recorded(again)) == {0, *kept}
    ringed = run(diverging(**{"record.ring": 60}), tmp_path / "ring")
    both = again.layers.merge(ringed.layers, on=["step", "layer", "sublayer", "site", "kind"])
    pd.testing.assert_series_equal(both.rms_x, both.rms_y, check_names=False)


def test_without_a_checkpoint_the_steps_since_the_start_run_again(tmp_path):
    plain = run(diverging(), tmp_path / "plain")
    last = plain.info["first_bad"]["step"]
    assert last > 1
    assert recorded(plain) == list(range(last + 1))
    ringed = run(diverging(**{"record.ring": 60}), tmp_path / "ring")
    both = plain.layers.merge(ringed.layers, on=["step", "layer", "sublayer", "site", "kind"])
    assert len(both) == len(ringed.layers)
    pd.testing.assert_series_equal(both.rms_x, both.rms_y, check_names=False)


@pytest.mark.parametrize("ring", [0, 2])
def test_an_update_that_breaks_the_weights_is_named_and_what_it_started_from_is_kept(
    tmp_path, ring
):
    changes = {"dtype": "fp16", "optimizer": "sgd", "train.steps": 6, "record.every": 4}
    done = run(make_config(changes | {"train.lr": 1e9, "record.ring": ring}), tmp_path / "run")
    assert done.info["status"] == "diverged"
    assert (done.info["first_bad"]["kind"], done.info["first_bad"]["step"]) == ("update", 0)
    kept = torch.load(tmp_path / "run" / FAILURE_FILE, weights_only=True)
    assert kept["step"] == 0
    assert all(torch.isfinite(p).all() for p in kept["model"].values())
    update = done.layers.query("step == 0 and kind == 'update' and site == 'wte'")
    assert update.nonfinite.item() > 0
    failing = done.layers[done.layers.step == 1]
    assert set(failing.kind) == {"weight", "act", "grad", "weight_grad"}
    assert not done.layers.duplicated(["step", "layer", "sublayer", "site", "kind"]).any()
    assert replay.main([str(tmp_path / "run")]) == 0


def test_the_last_update_is_repeated_like_any_other(tmp_path):
    changes = {"train.steps": 1, "optimizer": "sgd", "train.eval_batches": 1}
    broken = run(make_config(changes | {"dtype": "fp16", "train.lr": 1e9}), tmp_path / "weights")
    assert (broken.info["status"], broken.info["first_bad"]["kind"]) == ("diverged", "update")
    large = run(make_config(changes | {"train.lr": 1e38}), tmp_path / "activations")
    assert (large.info["status"], large.info["first_bad"]["kind"]) == ("diverged", "act")
    assert large.info["first_bad"]["step"] == 1
    for name in ("weights", "activations"):
        assert torch.load(tmp_path / name / FAILURE_FILE, weights_only=True)["x"].numel()


def test_the_first_bad_tensor_does_not_depend_on_what_is_recorded(tmp_path):
    changes = {"dtype": "fp16", "init.embed_std": 30000, "train.steps": 3}
    found = {}
    for name, record in {"all": {}, "few": {"record.kinds": ["weight_grad"]}}.items():
        done = run(make_config(changes | record, norm="none"), tmp_path / name)
        found[name] = done.info["first_bad"]
        failing = done.layers[done.layers.step == found[name]["step"]]
        assert {"weight", "act", "grad", "weight_grad"} <= set(failing.kind)
        assert not failing.duplicated(["layer", "sublayer", "site", "kind"]).any()
    assert found["all"] == found["few"]


def test_a_resumed_run_keeps_its_first_bad_tensor_and_its_seconds(tmp_path):
    changes = {"dtype": "fp16", "loss_scale": 2.0**24, "train.steps": 6, "on_nonfinite": "skip"}
    batches = iter(range(3))
    stop = lambda: next(batches, None) is None  # noqa: E731
    folder = tmp_path / "run"
    first = job.execute(make_config(changes), folder, stop=stop)
    assert (first["status"], first["first_bad"]["step"]) == ("interrupted", 0)
    rest = job.execute(make_config(changes), folder)
    assert rest["first_bad"] == first["first_bad"]
    assert rest["seconds"] > first["seconds"]


def test_memory_and_hooks_are_flat_over_20_runs(tmp_path):
    config = make_config({"train.steps": 1})

    def alive():
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor | torch.nn.Module) for o in gc.get_objects())

    counts = []
    for i in range(20):
        job.execute(config, tmp_path / str(i))
        if i in (3, 19):
            counts.append(alive())
    assert counts[1] <= counts[0]


def test_an_error_before_the_run_file_exists_is_in_the_log(tmp_path, monkeypatch):
    def fail(config):
        raise RuntimeError("no such tokens")

    monkeypatch.setattr(job, "source", fail)
    with pytest.raises(RuntimeError, match="no such tokens"):
        job.execute(make_config(), tmp_path)
    text = (tmp_path / "run.log").read_text()
    assert text.count("Traceback") == 1 and "RuntimeError: no such tokens" in text


def test_an_unwritable_folder_is_a_failed_run_with_a_cause(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OSError, match="file"):
        job.execute(make_config(), Path(blocked) / "run")
