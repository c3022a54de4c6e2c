"""A replay names the operation that made the first non-finite value, and what it read."""

import math
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import torch
import yaml
from rich.console import Console
from torch import nn

from stability import replay
from stability.config.names import Key
from stability.recording.operations import OperationTrace
from stability.training import kept_failure
from tiny import make_config, run


@pytest.fixture(scope="module")
def overflowed(tmp_path_factory):
    """An fp16 run without norms that overflows at its first step."""
    folder = tmp_path_factory.mktemp("fp16") / "run"
    changes = {"dtype": "fp16", "model.sublayers": "linear", "model.width": 32, "depth": 40}
    done = run(make_config(changes, norm="none", init="kaiming"), folder)
    assert done.info["status"] == "diverged"
    return done


def test_weights_of_another_shape_are_refused(overflowed, tmp_path):
    folder = shutil.copytree(overflowed.folder, tmp_path / "run")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["model"]["width"] = 64
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(kept_failure.NotReplayable, match="are not of one run"):
        replay.FailedStep(folder).replayer("fp32")


def test_the_culprit_reads_finite_values_and_writes_a_non_finite_one(overflowed):
    failed = replay.FailedStep(overflowed.folder)
    culprit = failed.operations("fp16", open_attention=False).culprit()
    assert culprit is not None
    assert all(math.isfinite(t.absmax) and t.nonfinite == 0 for t in culprit.inputs)
    assert any(t.nonfinite for t in culprit.outputs)
    assert max(t.absmax for t in culprit.inputs) > 1e3


def test_the_culprit_lies_where_the_run_found_its_first_bad_site(overflowed):
    rows = replay.FailedStep(overflowed.folder).rows("fp16")
    first = next(i for i, n in enumerate(rows["nonfinite"]) if n)
    bad = overflowed.info["first_bad"]
    assert {k: rows[k][first] for k in ("layer", "sublayer", "site", "kind")} == {
        k: v for k, v in bad.items() if k != "step"
    }


def test_a_wider_format_beside_it_shows_what_the_values_would_have_been(overflowed):
    rows = replay.FailedStep(overflowed.folder).rows("fp64")
    assert len(rows["nonfinite"]) and not any(rows["nonfinite"])


def test_the_command_prints_the_operation_and_keeps_all_of_them(overflowed):
    command = [sys.executable, "-m", "stability.replay", str(overflowed.folder), "--dtype", "fp32"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "made the first non-finite value" in done.stdout
    kept = pd.read_parquet(overflowed.folder / replay.REPLAY_FILE)
    assert kept[kept.nonfinite > 0].operation.iloc[0] in done.stdout
    assert kept.number.is_monotonic_increasing


def test_a_softmax_over_infinities_is_named_among_innocent_operations():
    class Softmax(nn.Module):
        def forward(self, x):
            return torch.softmax(x * 1e30 * 1e30, dim=-1)

    site = Softmax()
    with OperationTrace({Key(0, "attn", "scores"): site}) as trace:
        site(torch.ones(2, 3))
    culprit = trace.culprit()
    assert culprit is not None
    assert "mul" in culprit.name
    assert culprit.phase == "forward"


def test_an_operation_is_placed_by_the_last_site_on_the_way_up_and_on_the_way_down():
    class Doubled(nn.Module):
        def forward(self, x):
            return x * 2

    first, second = Doubled(), Doubled()
    keys = Key(0, "attn", "branch_out"), Key(0, "mlp", "branch_out")
    with OperationTrace(dict(zip(keys, (first, second), strict=True))) as trace:
        second(first(torch.ones(3, requires_grad=True))).sum().backward()
    found = [(op.phase, op.place) for op in trace.operations if "mul" in op.name]
    assert found == [
        ("forward", "start"),
        ("forward", f"after {keys[0]}"),
        ("backward", f"after the gradient at {keys[1]}"),
        ("backward", f"after the gradient at {keys[0]}"),
    ]


def test_an_operation_of_a_projection_is_placed_in_it_forward_and_backward():
    first, second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    words = {"query projection of layer 0": first, "key projection of layer 0": second}
    with OperationTrace({}, words) as trace:
        second(first(torch.ones(2, 3, requires_grad=True))).mul(2.0).sum().backward()
    found = [(op.phase, op.place) for op in trace.operations if "mm" in op.name]
    query, key = (f"in the {name}" for name in words)
    assert found == [
        ("forward", query),
        ("forward", key),
        *[("backward", key)] * 2,
        *[("backward", query)] * 2,
    ]
    (scaling,) = [op for op in trace.operations if op.name == "aten.mul.Tensor"][:1]
    assert (scaling.phase, scaling.place) == ("forward", "after the key projection of layer 0")
    assert not first._forward_hooks and not first._forward_pre_hooks


@pytest.mark.parametrize("what", ["absent", "completed", "damaged"])
def test_a_run_without_a_failing_step_is_refused_in_a_line(tmp_path, what, capsys):
    folder = tmp_path / "run"
    if what != "absent":
        run(make_config(), folder)
    if what == "damaged":
        (folder / "failure.pt").write_bytes(b"torn")
    assert replay.main([str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(folder) in error


MIXED = {
    "a config of others": lambda run: (run / "config.yaml").write_text("a: 1"),
    "a config that is a list": lambda run: (run / "config.yaml").write_text("[]"),
    "a state of others": lambda run: torch.save({"weights": 1}, run / "failure.pt"),
    "a state that is a tensor": lambda run: torch.save(torch.zeros(3), run / "failure.pt"),
    "a state without a batch": lambda run: torch.save(
        {"model": {"embed.wte": torch.zeros(256, 3)}}, run / "failure.pt"
    ),
    "a state of another shape": lambda run: torch.save(
        torch.load(run / "failure.pt", weights_only=True)
        | {"model": {"embed.wte": torch.zeros(256, 3)}},
        run / "failure.pt",
    ),
    "a state without weights": lambda run: torch.save(
        torch.load(run / "failure.pt", weights_only=True) | {"model": {}}, run / "failure.pt"
    ),
}


@pytest.mark.parametrize("text", [None, "torn", "[]", "{}"])
def test_a_damaged_state_of_a_run_that_its_update_broke_is_refused_in_a_line(
    tmp_path, text, capsys
):
    run(make_config({"train.keep_checkpoint": True}), tmp_path)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    state |= {"x": torch.zeros(4, 8, dtype=torch.long), "y": torch.ones(4, 8, dtype=torch.long)}
    torch.save(state, tmp_path / "failure.pt")
    (tmp_path / "run.json").unlink() if text is None else (tmp_path / "run.json").write_text(text)
    assert replay.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"stability.replay: {tmp_path}: run.json cannot be read\n"


def test_a_replay_needs_no_data(overflowed, tmp_path):
    for name in ("failure.pt", "run.json"):
        (tmp_path / name).write_bytes((overflowed.folder / name).read_bytes())
    config = yaml.safe_load((overflowed.folder / "config.yaml").read_text())
    config["data"]["build"] = {
        "_target_": "stability.parts.data.Text", "path": str(tmp_path / "gone"), "val_path": None,
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert replay.main([str(tmp_path)]) == 0


@pytest.mark.parametrize("mix", MIXED)
def test_files_that_one_run_did_not_leave_are_refused_in_a_line(overflowed, tmp_path, mix, capsys):
    for name in ("config.yaml", "failure.pt", "run.json"):
        (tmp_path / name).write_bytes((overflowed.folder / name).read_bytes())
    MIXED[mix](tmp_path)
    assert replay.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_healthy_step_has_no_culprit(tmp_path):
    done = run(make_config({"train.keep_checkpoint": True}), tmp_path / "run")
    state = torch.load(done.folder / "checkpoint.pt", weights_only=True)
    state |= {"x": torch.zeros(4, 8, dtype=torch.long), "y": torch.ones(4, 8, dtype=torch.long)}
    torch.save(state, done.folder / "failure.pt")
    assert replay.explain(done.folder, None, Console(quiet=True)) == 1
