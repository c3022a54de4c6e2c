"""A recording's rows reach the disk whatever happens to the program, and its memory stays flat."""

import gc
import json
import signal
import subprocess
import sys
import textwrap
import time
import tracemalloc
import warnings

import pandas as pd
import pytest
import torch
from torch import nn

import stability
from stability import plot
from stability.figures.drawing.variants import label
from stability.recording.external import lifetime
from stability.results.frames import sweep_rows

LAYERS = r"(\d+)"

PROGRAM = """
    import os, signal, sys, time
    import torch
    from torch import nn
    import stability

    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {before}
    recording = stability.record(model, sys.argv[1], r"(\\d+)", kinds=["act", "grad"])
    for step in range(60):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    {after}
"""

WAIT = "print('ready', flush=True); time.sleep(60)"


def program(folder, after, before="pass"):
    code = textwrap.dedent(PROGRAM).format(after=after, before=before)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    )


def recorded_steps(folder):
    return sorted(set(stability.load(folder, "layers").step))


def state(folder):
    return json.loads((folder / "run.json").read_text())


def test_at_sigterm_every_row_is_written_and_the_program_ends_as_it_would(tmp_path):
    with program(tmp_path / "run", WAIT) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM
    assert recorded_steps(tmp_path / "run") == list(range(60))
    found = state(tmp_path / "run")
    assert found["status"] == "interrupted" and found["steps_done"] == 60


def test_a_handler_of_the_program_is_left_alone(tmp_path):
    before = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    with program(tmp_path / "run", WAIT, before) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(30) == 7
    assert recorded_steps(tmp_path / "run") == list(range(60))


def test_when_killed_what_was_flushed_is_there(tmp_path):
    with program(tmp_path / "run", WAIT) as process:
        assert process.stdout.readline() == "ready\n"
        process.kill()
        process.wait(30)
    assert recorded_steps(tmp_path / "run")[-1] >= 38
    assert state(tmp_path / "run")["status"] == "running"


@pytest.mark.parametrize(
    ("after", "status", "error"),
    [
        ("pass", "completed", None),
        ("sys.exit(3)", "completed", None),
        ("raise ValueError('mine')", "failed", "ValueError: mine"),
    ],
)
def test_a_recording_that_is_never_closed_is_written_at_the_end_of_the_program(
    tmp_path, after, status, error
):
    with program(tmp_path / "run", after) as process:
        process.wait(30)
    assert recorded_steps(tmp_path / "run") == list(range(60))
    found = state(tmp_path / "run")
    assert (found["status"], (found["error"] or "").partition("\n")[0] or None) == (status, error)


@pytest.mark.parametrize(
    "child",
    [
        "[model(torch.randn(4, 8)).sum().backward() or optimizer.step() for _ in range(90)]",
        "recording.flush()",
        "recording.close()",
    ],
)
def test_a_forked_process_writes_nothing(tmp_path, child):
    lines = f"if not (pid := os.fork()): {child}; os._exit(0)\nos.waitpid(pid, 0)"
    with program(tmp_path / "run", f"{lines}\nrecording.close()") as process:
        assert process.wait(30) == 0
    assert stability.load(tmp_path / "run", "steps").step.tolist() == list(range(60))
    assert recorded_steps(tmp_path / "run") == list(range(60))
    assert state(tmp_path / "run")["status"] == "completed"


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (SystemExit(), "completed"),
        (SystemExit(0), "completed"),
        (SystemExit(1), "failed"),
        (GeneratorExit(), "completed"),
    ],
)
def test_a_loop_may_end_with_an_exception_that_is_no_failure(tmp_path, ending, status):
    model = nn.Sequential(nn.Linear(8, 8))
    with (
        pytest.raises(type(ending)),
        stability.record(model, tmp_path / "run", LAYERS),
    ):
        model(torch.ones(4, 8)).sum().backward()
        raise ending
    assert state(tmp_path / "run")["status"] == status


def test_an_error_of_an_interactive_session_is_not_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "last_value", ValueError("mine"), raising=False)
    assert isinstance(lifetime._uncaught(), ValueError)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert lifetime._uncaught() is None


def test_a_running_recording_can_be_loaded_and_plotted(tmp_path):
    with program(tmp_path / "runs" / "one", WAIT) as process:
        assert process.stdout.readline() == "ready\n"
        assert plot.main([str(tmp_path / "runs"), "--format", "png", "--figures", "variance"]) == 0
        process.kill()
    assert (tmp_path / "runs" / "figures" / "variance.png").exists()


def small():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2)))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(model, optimizer, steps):
    for _ in range(steps):
        model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_memory_does_not_grow_with_the_steps(tmp_path):
    model, optimizer = small()
    with stability.record(model, tmp_path / "run", LAYERS, kinds=["act", "grad"]) as loop:
        tracemalloc.start()
        train(model, optimizer, 600)
        loop.flush()
        gc.collect()
        first = tracemalloc.get_traced_memory()[0]
        train(model, optimizer, 1000)
        loop.flush()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - first
        tracemalloc.stop()
    assert grown < 10_000  # bytes; the rows of 1000 steps are a hundred times as many
    assert len(recorded_steps(tmp_path / "run")) == 1600


def test_a_second_run_in_a_folder_is_refused_before_training_or_replaces_the_first(tmp_path):
    model, optimizer = small()
    with stability.record(model, tmp_path / "run", LAYERS):
        train(model, optimizer, 5)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        stability.record(model, tmp_path / "run", LAYERS)
    with stability.record(model, tmp_path / "run", LAYERS, overwrite=True):
        train(model, optimizer, 2)
    assert recorded_steps(tmp_path / "run") == [0, 1]
    assert state(tmp_path / "run")["steps_done"] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kinds": ["acts"]}, r"kinds=\['acts'\]: must be a list of act, grad"),
        ({"kinds": []}, r"kinds=\[\]: must be a list of"),
        ({"kinds": "grad"}, "kinds='grad': must be a list of"),
        ({"every": 0}, "every=0: must be a whole number >= 1"),
        ({"every": 2.5}, r"every=2\.5: must be a whole number >= 1"),
        ({"every": "10"}, "every='10': must be a whole number"),
        ({"settings": "lr"}, "settings='lr': must be a mapping"),
        ({"ring": -1}, "ring=-1"),
        ({"steps": "mine"}, "choose from updates, loop"),
        ({"settings": {"lr": [1]}}, "number, text or bool"),
        ({"token_dim": 0.5}, "token_dim=0.5"),
        ({"loss_scale": 1024.0}, "loss_scale=1024.0"),
    ],
)
def test_an_argument_that_is_not_legal_is_refused_at_once(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        stability.record(small()[0], tmp_path / "run", LAYERS, **options)
    assert not (tmp_path / "run").exists()


def test_a_recording_says_what_it_is(tmp_path):
    model, optimizer = small()
    with stability.record(model, tmp_path / "run", LAYERS) as recording:
        train(model, optimizer, 2)
        assert "run: recording, 2 steps" in repr(recording)
    assert "run: closed, 2 steps" in repr(recording)
    recording.close()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.amp.GradScaler.step.__module__.startswith("torch")
    assert not hasattr(torch.amp.GradScaler.step, "__wrapped__")


def two(tmp_path, **options):
    for name, factor in (("small", 1.0), ("large", 3.0)):
        model, optimizer = small()
        with torch.no_grad():
            for p in model.parameters():
                p *= factor
        its = {key: value(factor) for key, value in options.items()}
        with stability.record(model, tmp_path / "runs" / name, LAYERS, **its):
            train(model, optimizer, 2)
    assert plot.main([str(tmp_path / "runs"), "--format", "png", "--figures", "variance"]) == 0
    return pd.read_csv(tmp_path / "runs" / "figures" / "variance.csv")


def test_two_recordings_are_two_lines_and_never_silently_two_seeds(tmp_path):
    drawn = two(tmp_path)
    assert set(drawn["label"]) == {"small", "large"}
    assert set(drawn["seeds"]) == {1}


def test_two_recordings_are_drawn_without_a_warning_and_each_under_its_name(tmp_path, capsys):
    two(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plot.main([str(tmp_path / "runs"), "--format", "png"]) == 0
    assert "no run has a loss" in capsys.readouterr().out
    rows = sweep_rows(tmp_path / "runs", "layers", ["step"], None)
    assert [label(rows, "label", name) for name in ("large", "small")] == ["large", "small"]


def test_settings_are_columns_and_lines(tmp_path):
    drawn = two(tmp_path, label=lambda _: "mine", settings=lambda factor: {"gain": factor})
    assert set(drawn["settings.gain"]) == {1.0, 3.0}
    assert set(stability.load(tmp_path / "runs", "runs")["settings.gain"]) == {1.0, 3.0}


def test_recordings_with_one_label_and_two_seeds_are_seeds(tmp_path):
    drawn = two(tmp_path, label=lambda _: "mine", seed=lambda factor: int(factor))
    assert "label" not in drawn and set(drawn["seeds"]) == {2}


def test_time_alone_brings_rows_to_disk(tmp_path, monkeypatch):
    model, optimizer = small()
    monkeypatch.setattr("stability.recording.external.run_writer.FLUSH_SECONDS", 0.05)
    with stability.record(model, tmp_path / "run", LAYERS):
        train(model, optimizer, 2)
        time.sleep(0.1)
        train(model, optimizer, 2)
        assert recorded_steps(tmp_path / "run")


def test_a_training_that_resumes_continues_its_run(tmp_path):
    def run(folder, legs):
        model, optimizer = small()
        for begin, end, redone in legs:
            options = {"every": 2, "ring": 1, "first_step": begin}
            with stability.record(model, folder, LAYERS, **options) as loop:
                train(model, optimizer, end - begin)
                kept = {name: p.clone() for name, p in model.state_dict().items()}
                train(model, optimizer, redone)  # steps after the last checkpoint
            assert loop.steps_done == end + redone
            model.load_state_dict(kept)
        return loop

    whole = run(tmp_path / "whole", [(0, 9, 0)])
    legs = run(tmp_path / "legs", [(0, 3, 2), (3, 6, 1), (6, 9, 0)])
    frames = [stability.load(tmp_path / name).drop(columns="run") for name in ("whole", "legs")]
    names = [c for c in frames[0].columns if c not in ("label", "folder")]
    pd.testing.assert_frame_equal(*(f[names].reset_index(drop=True) for f in frames))
    assert stability.load(tmp_path / "legs", "steps").step.tolist() == list(range(9))
    found = state(tmp_path / "legs")
    assert found["status"] == "completed" and found["steps_done"] == 9
    assert found["record_seconds"] > 0 and found["run"] == legs.run != whole.run


def test_a_run_that_failed_and_goes_on_forgets_its_error(tmp_path):
    model, optimizer = small()
    with pytest.raises(ValueError), stability.record(model, tmp_path / "run", LAYERS):
        train(model, optimizer, 3)
        model[0].weight.data[0] = float("nan")
        train(model, optimizer, 1)
        raise ValueError
    assert state(tmp_path / "run")["first_bad"]["step"] == 3
    model, optimizer = small()
    with stability.record(model, tmp_path / "run", LAYERS, first_step=2):
        train(model, optimizer, 2)
    found = state(tmp_path / "run")
    assert (found["status"], found["error"], found["first_bad"]) == ("completed", None, None)
    with stability.record(model, tmp_path / "run", LAYERS, first_step=4):
        pass  # the training was complete
    assert state(tmp_path / "run")["status"] == "completed"
    assert recorded_steps(tmp_path / "run") == [0, 1, 2, 3]


def test_the_first_step_of_a_new_run_may_have_any_number(tmp_path):
    model, optimizer = small()
    with stability.record(model, tmp_path / "run", LAYERS, first_step=7):
        train(model, optimizer, 2)
    assert recorded_steps(tmp_path / "run") == [7, 8]


def test_only_a_module_can_be_recorded(tmp_path):
    with pytest.raises(TypeError, match=r"model: must be a torch\.nn\.Module, not str"):
        stability.record("mine", tmp_path / "run", LAYERS)


def test_settings_alone_tell_recordings_apart(tmp_path):
    """Without a label the model's class is the label, so that only the settings differ."""
    for lr in (0.1, 0.2):
        model, optimizer = small()
        with stability.record(model, tmp_path / f"lr{lr}", LAYERS, settings={"lr": lr}):
            train(model, optimizer, 1)
    assert set(sweep_rows(tmp_path, "runs").axes) == {"settings.lr"}


def test_a_model_that_ran_without_gradients_is_said_to_have_and_keeps_no_folder(tmp_path):
    model, optimizer = small()
    with (
        pytest.warns(RuntimeWarning, match="the model ran 2 times, all without gradients") as said,
        stability.record(model, tmp_path / "run", LAYERS),
        torch.no_grad(),
    ):
        model(torch.ones(3, 4))
        model(torch.ones(3, 4))
    assert len(said) == 1 and said[0].filename == __file__
    with stability.record(model, tmp_path / "run", LAYERS):  # nothing is lost that it held
        train(model, optimizer, 1)
    assert state(tmp_path / "run")["status"] == "completed"


def test_backward_passes_without_an_update_are_said_to_be_one_step(tmp_path):
    model, _ = small()
    with (
        pytest.warns(RuntimeWarning, match="3 backward passes and no update of a parameter"),
        stability.record(model, tmp_path / "run", LAYERS),
    ):
        for _ in range(3):
            model(torch.ones(3, 4)).square().mean().backward()
    assert recorded_steps(tmp_path / "run") == [0]


def test_a_pattern_that_matches_nothing_is_refused_with_names_of_modules(tmp_path):
    model, _ = small()
    with pytest.raises(ValueError, match=r"matches none of the model's modules \(0, 1, "):
        stability.record(model, tmp_path / "run", r"layers\.(\d+)")
    assert not (tmp_path / "run").exists()
