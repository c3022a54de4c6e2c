"""A run that was stopped, killed or made longer leaves what an undisturbed run leaves."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
import torch

from stability.results import integrity, parquet
from stability.results.schema import CHECKPOINT_FILE, LAYER_KEY
from stability.sweep import resume, worker
from stability.training import checkpoint, job
from tiny import make_config

TIMES = ["step_s", "record_s"]
"""Columns that no two runs share."""


def tables(folder):
    """Both tables, sorted by their keys, without what the clock says."""
    layers = parquet.read(folder, "layers").to_pandas().sort_values(list(LAYER_KEY))
    steps = parquet.read(folder, "steps").to_pandas().sort_values("step").drop(columns=TIMES)
    return layers.reset_index(drop=True), steps.reset_index(drop=True)


def same(one, other):
    for a, b in zip(tables(one), tables(other), strict=True):
        pd.testing.assert_frame_equal(a, b, check_exact=True)


def weights(folder):
    return torch.load(folder / CHECKPOINT_FILE, weights_only=True)["model"]


def stop_after(steps):
    """A `stop` that lets so many steps pass."""
    passed = iter(range(steps))
    return lambda: next(passed, None) is None


SETTINGS = {
    "eager fp32 with dropout": {"model.dropout": 0.1},
    "fp16, dynamic loss scale, batchnorm": {
        "dtype": "fp16",
        "loss_scale": "dynamic",
        "norm_type": "batchnorm",
    },
    "sgd, accumulation, schedule": {
        "optimizer": "sgd",
        "train.accumulate": 3,
        "train.schedule": "cosine",
        "train.warmup_steps": 5,
    },
}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS.keys())
def test_100_steps_equal_50_and_resume_50(tmp_path, changes):
    long = {"train.steps": 100, "train.keep_checkpoint": True, "record.every": 7}
    over = {k: v for k, v in changes.items() if k == "norm_type"}
    rest = {k: v for k, v in changes.items() if k not in over}
    config = make_config(long | {"record.flush_every": 9, "train.eval_every": 20} | rest, **over)
    job.execute(config, tmp_path / "whole")
    for steps in (50, 0, 13, 1000):
        info = job.execute(config, tmp_path / "parts", stop=stop_after(steps))
    assert info["status"] == "completed"
    same(tmp_path / "whole", tmp_path / "parts")
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_more_steps_continue_a_completed_run(tmp_path):
    changes = {"train.keep_checkpoint": True, "record.every": 4}
    job.execute(make_config(changes | {"train.steps": 10}), tmp_path / "grown")
    job.execute(make_config(changes | {"train.steps": 25}), tmp_path / "grown")
    job.execute(make_config(changes | {"train.steps": 25}), tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "grown")


def test_the_checkpoint_goes_when_the_run_ends_unless_it_is_kept(tmp_path):
    job.execute(make_config({"train.checkpoint_every": 1}), tmp_path / "gone")
    assert not (tmp_path / "gone" / CHECKPOINT_FILE).exists()
    job.execute(make_config({"train.keep_checkpoint": True}), tmp_path / "kept")
    assert (tmp_path / "kept" / CHECKPOINT_FILE).exists()


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04torn"])
def test_a_damaged_checkpoint_means_starting_again(tmp_path, content):
    config = make_config({"train.steps": 6, "train.keep_checkpoint": True})
    job.execute(config, tmp_path / "whole")
    job.execute(config, tmp_path / "torn", stop=stop_after(3))
    (tmp_path / "torn" / CHECKPOINT_FILE).write_bytes(content)
    job.execute(config, tmp_path / "torn")
    same(tmp_path / "whole", tmp_path / "torn")


DAMAGES = {
    "rows are torn": lambda run: os.truncate(run / "layers.parquet", 999),
    "rows are gone": lambda run: os.truncate(run / "steps.parquet", 0),
    "rows have changed": lambda run: overwrite(run / "layers.parquet", 999),
    "config is torn": lambda run: os.truncate(run / "config.yaml", 9),
    "config is a list": lambda run: (run / "config.yaml").write_text("[]"),
    "state has no steps": lambda run: (run / "run.json").write_text('{"status": "completed"}'),
}


def overwrite(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGES)
def test_more_steps_of_a_damaged_run_start_it_again(tmp_path, damage):
    def run(steps, folder):
        config = make_config({"train.keep_checkpoint": True, "train.steps": steps})
        return worker.run(config, folder, lambda row: None, "stability.training.job")

    run(3, tmp_path / "broken")
    DAMAGES[damage](tmp_path / "broken")
    assert run(6, tmp_path / "broken")["status"] == "completed"
    run(6, tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "broken")


def test_a_finished_run_whose_rows_are_torn_is_made_again(tmp_path):
    config = make_config()
    worker.run(config, tmp_path, lambda row: None, "stability.training.job")
    assert resume.finished(tmp_path, config)
    os.truncate(tmp_path / "layers.parquet", 999)
    assert resume.finished(tmp_path, config) is None
    worker.run(config, tmp_path, lambda row: None, "stability.training.job")
    assert resume.finished(tmp_path, config)


def fail_to_read(monkeypatch, what, error):
    """Let reading one kind of file fail as a disk does."""

    def fail(*args, **kwargs):
        raise error

    read = Path.read_bytes
    if what == "the rows":
        monkeypatch.setattr(integrity.ds, "dataset", fail)
    elif what == "the end of a table":
        monkeypatch.setattr(integrity.pq, "read_metadata", fail)
    else:
        monkeypatch.setattr(Path, "read_bytes", lambda p: fail() if p.name == what else read(p))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("what", ["the rows", "the end of a table", "run.json", "config.yaml"])
def test_a_read_error_deletes_nothing(tmp_path, monkeypatch, what, number):
    def run(steps):
        config = make_config({"train.keep_checkpoint": True, "train.steps": steps})
        return worker.run(config, tmp_path, lambda row: None, "stability.training.job")

    def content():
        return {path: path.read_bytes() for path in tmp_path.glob("*") if path.is_file()}

    run(3)
    before = content()
    with monkeypatch.context() as disk:
        fail_to_read(disk, what, OSError(number, os.strerror(number)))
        with pytest.raises(OSError, match=os.strerror(number)):
            run(6)
    assert content() == before and CHECKPOINT_FILE in {path.name for path in before}
    assert run(6)["status"] == "completed"


@pytest.mark.parametrize("what", ["the end of a table", "run.json"])
def test_a_finished_run_that_cannot_be_read_is_started_and_fails(tmp_path, monkeypatch, what):
    config = make_config()
    worker.run(config, tmp_path, lambda row: None, "stability.training.job")
    fail_to_read(monkeypatch, what, OSError(errno.EIO, "input/output error"))
    assert resume.finished(tmp_path, config) is None
    with pytest.raises(OSError, match="input/output error"):
        worker.run(config, tmp_path, lambda row: None, "stability.training.job")


def test_a_checkpoint_cannot_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harmed"),)

    torch.save({"run": "x", "step": Evil()}, tmp_path / "evil.pt")
    assert checkpoint.load(tmp_path / "evil.pt", "x") is None
    assert not (tmp_path / "harmed").exists()


def command(folder, *changes):
    fixed = ["depth=2", "model.width=16", "model.heads=2", "model.context=8", "train.batch_size=4"]
    steps = ["train.steps=300", "train.checkpoint_every=20", "train.eval_every=0"]
    rows = ["record.every=3", "record.flush_every=10", "n_jobs=1"]
    where = [f"out={folder}", "name=killed"]
    return [sys.executable, "-m", "stability.run", *fixed, *steps, *rows, *where, *changes]


def wait_for_the_run(process, sweep):
    """Until this command has claimed the run, or has ended."""
    began = time.time()
    while process.poll() is None:
        claims = [p.stat().st_mtime for p in sweep.glob("*/run.lock")]
        if claims and max(claims) > began:
            return
        time.sleep(0.05)


def kill_tree(process):
    """Kill -9 the sweep and its workers, which form a session of their own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_a_run_killed_at_random_moments_equals_an_undisturbed_one(tmp_path):
    """KILLS=50 for the full count; CI makes do with fewer."""
    kills, rng = int(os.environ.get("KILLS", "4")), random.Random(0)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command(tmp_path / "whole"), check=True, timeout=300, **quiet)
    (whole,) = (tmp_path / "whole" / "killed").glob("*/")
    landed = 0
    for _ in range(kills):
        process = subprocess.Popen(command(tmp_path / "broken"), start_new_session=True, **quiet)
        wait_for_the_run(process, tmp_path / "broken" / "killed")
        time.sleep(rng.uniform(0.0, 2.5))
        landed += process.poll() is None
        kill_tree(process)
        for found in (tmp_path / "broken" / "killed").glob("*/"):
            layers, steps = tables(found)
            assert not layers.duplicated(list(LAYER_KEY)).any()
            assert not steps.duplicated("step").any()
    assert landed > 0
    subprocess.run(command(tmp_path / "broken"), check=True, timeout=300, **quiet)
    (broken,) = (tmp_path / "broken" / "killed").glob("*/")
    same(whole, broken)
