"""What a run sets up in its process before it trains."""

import subprocess
import sys

import pytest
import torch

from stability.config.knobs import ConfigError
from stability.model import preflight
from stability.sweep import grid
from stability.training import job
from tiny import make_config


def flushes() -> bool:
    """Whether this thread computes with 0 in place of a subnormal number."""
    return (torch.full((1,), 1e-30) * 1e-10).item() == 0


@pytest.fixture(autouse=True)
def restored():
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("first", [False, True])
def test_each_run_flushes_as_its_own_config_says(tmp_path, first, monkeypatch):
    seen = []
    monkeypatch.setattr(job, "_run", lambda *args: seen.append(flushes()) or 1 / 0)
    for i, flush in enumerate((first, not first)):
        with pytest.raises(ZeroDivisionError):
            job.execute(make_config({"flush_subnormal": flush}), tmp_path / str(i))
    assert seen == [first, not first]


THREADS = """
import sys
import torch
from stability.training import job
from tiny import make_config

def seen(*args):
    x = torch.full((1 << 20,), 1e-30)
    sys.exit(int((x * 1e-10).count_nonzero()))

job._run = seen
job.execute(make_config({"flush_subnormal": True, "threads": 2}), __import__("pathlib").Path("run"))
"""


def test_all_threads_of_a_new_process_flush(tmp_path):
    paths = [p for p in sys.path if p]
    code = f"import sys; sys.path[:0] = {paths!r}\n{THREADS}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("flush", "threads", "alone"), [(True, 2, True), (True, 1, False), (False, 2, False)]
)
def test_a_run_whose_threads_flush_gets_a_process_of_its_own(flush, threads, alone):
    config = make_config({"flush_subnormal": flush, "threads": threads})
    assert grid.needs_process(config) == alone


def test_flushing_is_refused_where_it_has_no_effect(monkeypatch):
    monkeypatch.setattr(preflight, "device_of", lambda config: torch.device("mps"))
    with pytest.raises(ConfigError, match="flush_subnormal=True: has no effect: the device is mps"):
        preflight.check(make_config({"flush_subnormal": True}))


def test_flushing_is_refused_where_the_cpu_cannot(monkeypatch):
    monkeypatch.setattr(torch, "set_flush_denormal", lambda on: False)
    with pytest.raises(ConfigError, match="this CPU cannot do it"):
        preflight.check(make_config({"flush_subnormal": True}))
