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


def given(monkeypatch, files, **variables):
    """Eight cores by affinity, control groups with these files, and what Slurm sets."""

    def read_text(path):
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(Path, "read_text", read_text)


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 8), (None, 8)],
)
def test_a_quota_of_the_container_limits_the_cores(monkeypatch, quota, expected):
    given(monkeypatch, {} if quota is None else {"/sys/fs/cgroup/cpu.max": quota + "\n"})
    assert devices.cores() == expected


@pytest.mark.parametrize("group", ["/slurm/job_1/step_0", "/slurm/job_1", "/slurm", "/"])
def test_the_quota_of_any_group_above_the_process_limits_the_cores(monkeypatch, group):
    files = {"/proc/self/cgroup": "1:cpu:/old\n0::/slurm/job_1/step_0\n"}
    files["/sys/fs/cgroup/slurm/job_1/step_0/cpu.max"] = "max 100000\n"
    place = "/sys/fs/cgroup" + group.rstrip("/")
    given(monkeypatch, files | {f"{place}/cpu.max": "300000 100000\n"})
    assert devices.cores() == 3


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_CPUS_PER_TASK": "1"}, 1),
        ({"SLURM_CPUS_PER_TASK": "2", "SLURM_CPUS_ON_NODE": "4"}, 2),
        ({"SLURM_CPUS_ON_NODE": "4"}, 4),
        ({"SLURM_CPUS_PER_TASK": "64"}, 8),
        ({"SLURM_CPUS_PER_TASK": "many"}, 8),
    ],
)
def test_slurms_allocation_limits_the_cores(monkeypatch, variables, expected):
    given(monkeypatch, {}, **variables)
    assert devices.cores() == expected


@pytest.mark.parametrize(("counted", "expected"), [(6, 6), (None, 1)])
def test_a_system_without_affinity_counts_its_cores(monkeypatch, counted, expected):
    def read_text(path):
        raise FileNotFoundError(path)

    given(monkeypatch, {})
    monkeypatch.delattr(devices.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(devices.os, "cpu_count", lambda: counted)
    monkeypatch.setattr(Path, "read_text", read_text)
    assert devices.cores() == expected


def test_no_more_gpus_are_named_than_there_are(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,2")
    assert devices.gpu_names(2) == ["3", "1"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert devices.gpu_names(2) == ["0", "1"]
