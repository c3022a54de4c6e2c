"""How many workers there are, and which GPU each of them gets."""

from dataclasses import replace
from pathlib import Path

import pytest

from stability.sweep import devices
from stability.sweep.pool import Pool
from stub_runs import HERE, SETTINGS, Recorder, cells, run_file


def test_each_worker_has_a_gpu_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-7")
    changes = {"device": "cuda", "n_jobs": "auto", "step_s": 0.3}
    made = cells(tmp_path, "completes", "completes", "completes", **changes)
    settings = devices.worker_settings(made, [HERE], 2)
    assert [each.device for each in settings] == ["2", "GPU-7"]
    assert {each.trusted for each in settings} == {(HERE,)}
    settings = [replace(each, execute=SETTINGS.execute) for each in settings]
    Pool(settings, Recorder()).run(made)
    assert {run_file(cell)["device"] for cell in made} == {"2", "GPU-7"}


@pytest.mark.parametrize(
    ("device", "n_jobs", "threads", "gpus", "expected"),
    [
        ("auto", "auto", 1, 0, [None] * 4),
        ("cpu", "auto", 2, 1, [None] * 2),
        ("cpu", "auto", 9, 0, [None]),
        ("cpu", 3, 1, 0, [None] * 3),
        ("auto", "auto", 1, 2, ["0", "1"]),
        ("cuda", 4, 1, 2, ["0", "1", "0", "1"]),
        ("cuda:1", "auto", 1, 2, [None]),
        ("mps", "auto", 1, 0, [None]),
        ("auto", 99, 1, 0, [None] * 5),
    ],
)
def test_how_many_runs_go_on_at_a_time(
    tmp_path, monkeypatch, device, n_jobs, threads, gpus, expected
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "cores", lambda: 4)
    made = cells(tmp_path, *["completes"] * 5, device=device, n_jobs=n_jobs, threads=threads)
    assert [each.device for each in devices.worker_settings(made, [], gpus)] == expected


def test_the_run_with_the_most_threads_sets_the_number_of_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "cores", lambda: 4)
    made = [
        *cells(tmp_path, "completes", "completes", threads=1, n_jobs="auto"),
        *cells(tmp_path, "completes", "completes", threads=2, n_jobs="auto"),
    ]
    assert len(devices.worker_settings(made, [], 0)) == 2


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 8), (None, 8)],
)
def test_a_quota_of_the_container_limits_the_cores(monkeypatch, quota, expected):
    def read_text(path):
        assert str(path) == "/sys/fs/cgroup/cpu.max"
        if quota is None:
            raise FileNotFoundError
        return quota + "\n"

    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(Path, "read_text", read_text)
    assert devices.cores() == expected


@pytest.mark.parametrize(("counted", "expected"), [(6, 6), (None, 1)])
def test_a_system_without_affinity_counts_its_cores(monkeypatch, counted, expected):
    def read_text(path):
        raise FileNotFoundError(path)

    monkeypatch.delattr(devices.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(devices.os, "cpu_count", lambda: counted)
    monkeypatch.setattr(Path, "read_text", read_text)
    assert devices.cores() == expected


def test_no_more_gpus_are_named_than_there_are(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,2")
    assert devices.gpu_names(2) == ["3", "1"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert devices.gpu_names(2) == ["0", "1"]
