"""How many workers there are, and which GPU each of them gets."""

from dataclasses import replace

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
