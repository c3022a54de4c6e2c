"""Dashboards show the curated numbers of each step and two maps of each run."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import stability
import wandb_files
from stability import export
from stability.results.curated import curated
from stability.results.sinks import sink_of
from synthetic import write_run, write_sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    write_sweep(tmp_path / "sweep", {"norm": ["pre", "post"]}, steps=5, every=2)
    return tmp_path / "sweep"


def wanted(run: Path) -> dict[int, dict[str, float]]:
    """Step -> the curated numbers, from what `load` gives."""
    layers = dict(iter(stability.load(run).groupby("step")))
    steps = stability.load(run, "steps").astype(object).to_dict("records")
    rows = ({k: v for k, v in row.items() if v == v} for row in steps)
    return {row["step"]: curated(layers.get(row["step"]), row) for row in rows}


def events(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def runs(sweep: Path) -> list[Path]:
    return sorted(p.parent for p in sweep.glob("*/run.json"))


def test_tensorboard_reads_back_every_number_and_two_maps(sweep: Path) -> None:
    assert export.main([str(sweep), "--to", "tensorboard"]) == 0
    for run in runs(sweep):
        found = events(sweep / "tensorboard" / run.name)
        back: dict[int, dict[str, float]] = {}
        for tag in found.Tags()["scalars"]:
            for event in found.Scalars(tag):
                back.setdefault(event.step, {})[tag] = event.value
        assert set(back) == {0, 1, 2, 3, 4}
        for step, numbers in wanted(run).items():
            assert back[step] == pytest.approx(numbers, rel=1e-6)
        assert {"loss", "act_rms/middle", "grad_rms/last_over_first"} <= set(back[4])
        assert set(found.Tags()["images"]) == set(export.MAPS)
        assert found.Images("act_var_map")[0].width == round(5.5 * 200)


def test_a_second_export_replaces_the_first_and_no_file_of_others(sweep: Path) -> None:
    others = sweep / "tensorboard" / runs(sweep)[0].name / "events.out.tfevents.1.other"
    for _ in range(2):
        assert export.main([str(sweep), "--to", "tensorboard"]) == 0
        others.touch()
    files = list(others.parent.glob("events*"))
    assert len(files) == 2 and others in files


def test_wandb_reads_back_every_number_offline(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert export.main([str(sweep), "--to", "wandb", "--out", str(tmp_path / "out")]) == 0
    ids = set()
    for run in runs(sweep):
        hashed = json.loads((run / "run.json").read_text())["run"]
        (file,) = (tmp_path / "out").glob(f"wandb/offline-run-*-{hashed}/run-{hashed}.wandb")
        (state,) = [r.run for r in wandb_files.records(file) if r.HasField("run")]
        assert (state.project, state.display_name) == ("sweep", run.name)
        config = {item.key: json.loads(item.value_json) for item in state.config.update}
        assert config["depth"] == 6 and config["choices"]["norm"] in run.name
        ids.add(state.run_id)
        back = wandb_files.history(file)
        for step, numbers in wanted(run).items():
            assert {k: back[step][k] for k in numbers} == pytest.approx(numbers)
        assert {f"{name}._type" for name in export.MAPS} <= set(back[4])
    assert len(ids) == 2


def test_a_run_with_one_recorded_step_has_numbers_and_no_map(tmp_path: Path) -> None:
    run = write_run(tmp_path / "sweep", {"norm": "pre"}, steps=1)
    assert export.main([str(run), "--to", "tensorboard", "--out", str(tmp_path / "out")]) == 0
    tags = events(tmp_path / "out" / run.name).Tags()
    assert "act_rms/last" in tags["scalars"] and tags["images"] == []


def test_a_loss_that_is_not_finite_reaches_the_dashboard(tmp_path: Path) -> None:
    run = write_run(tmp_path / "sweep", {"norm": "pre"}, bad_step=3)
    assert export.main([str(run), "--to", "tensorboard"]) == 0
    losses = events(run / "tensorboard" / run.name).Scalars("loss")
    assert [math.isnan(e.value) for e in losses] == [False, False, False, True]


@pytest.mark.parametrize("to", export.OPENERS)
def test_a_framework_that_is_not_installed_is_named(
    sweep: Path, to: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert export.main([str(sweep), "--to", to]) == 2
    said, cure = capsys.readouterr().err, f"pip install 'gradient-stability[{to}]'"
    assert said == f"stability.export: --to {to}: is not installed; {cure}\n"
    assert not (sweep / to).exists()


def test_a_folder_without_runs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export.main([str(tmp_path), "--to", "tensorboard"]) == 2
    assert "holds no runs" in capsys.readouterr().err


def test_importing_the_command_imports_no_framework() -> None:
    code = (
        "import sys, stability.export\n"
        "assert not {'torch', 'tensorboard', 'wandb', 'hydra'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Recorder:
    """Stands in for a run of wandb.init."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, object], int]] = []

    def log(self, data: dict[str, object], step: int) -> None:
        self.logged.append((data, step))


def test_a_sink_sends_a_step_to_a_run_in_one_call() -> None:
    run = Recorder()
    sink_of(run).scalars({"loss": 1.0, "lr": 0.1}, 7)
    sink_of(run).image("map", np.zeros((2, 3, 3), np.uint8), 8)
    (numbers, step), (image, later) = run.logged
    assert (numbers, step, later) == ({"loss": 1.0, "lr": 0.1}, 7, 8)
    assert type(image["map"]).__module__.startswith("wandb")


def test_an_object_that_writes_nothing_is_no_sink() -> None:
    with pytest.raises(TypeError, match="list has neither add_scalar"):
        sink_of([])  # type: ignore[arg-type]


def test_the_frameworks_are_installed_here() -> None:
    """So that the tests above cannot pass without them."""
    assert all(importlib.util.find_spec(name) for name in export.OPENERS)
