"""Runs under a launcher of Hydra end as their files say, whatever becomes of the launcher."""

import io
import json
import signal
from types import SimpleNamespace

import pytest
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from rich.console import Console

from planning import composing, planned
from stability.cli import hydra_launcher, plan
from stability.config.knobs import ConfigError
from stability.sweep import lock
from stability.sweep.pool import RunEnd


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200)


def leave(cell, status, **state):
    """What a run of this status has on disk."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    info = {"status": status, "steps_done": cell.config.train.steps, "error": None}
    info |= {"identity": json.loads(json.dumps(cell.identity)), **state}
    (cell.folder / "run.json").write_text(json.dumps(info))
    return info


def status_of(cell):
    return json.loads((cell.folder / "run.json").read_text())["status"]


def kinds(cells, ends):
    return [ends[cell.run].kind for cell in cells]


# What is chosen ---------------------------------------------------------------------------------


def chosen(*words):
    with composing(*words) as (request, composer):
        return hydra_launcher.config_of(request, composer)


@pytest.mark.parametrize("words", [[], ["hydra/launcher=procs"], ["n_jobs=2", "isolate=true"]])
def test_without_a_launcher_runs_are_processes_of_this_machine(words):
    assert chosen(*words) is None


def test_a_launcher_is_composed_with_its_keys():
    config = chosen("hydra/launcher=basic", "seed=1,2")
    assert config.hydra.launcher._target_.endswith("BasicLauncher")


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["hydra/launcher=basic", "n_jobs=2"], "n_jobs=2: has no effect: hydra/launcher=basic"),
        (["hydra/launcher=basic", "isolate=true"], "isolate=true: has no effect"),
        (["hydra/launcher=basic", "fail_fast=true"], "fail_fast=true: has no effect"),
        (["hydra.launcher.x=1"], "hydra.launcher.x=1: has no effect: hydra/launcher=procs"),
        (["hydra/launcher=slurm"], "hydra/launcher=slurm: .*basic.*procs"),
    ],
)
def test_keys_of_another_way_to_launch_are_refused(words, refused):
    with pytest.raises(ConfigError, match=refused):
        chosen(*words)


def test_every_launcher_of_hydra_is_shown_with_its_keys():
    with composing() as (_, composer):
        shown = hydra_launcher.help_text(composer)
        assert {"basic", "procs"} <= set(hydra_launcher.names(composer))
    assert shown.startswith("hydra/launcher=NAME, where NAME is one of basic, procs")
    assert "with hydra/launcher=basic:\n_target_: hydra._internal" in shown
    assert "with hydra/launcher=procs:" not in shown


# How runs end -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("completed", "done"),
        ("diverged", "done"),
        ("interrupted", "interrupted"),
        ("failed", "failed"),
    ],
)
def test_after_the_launcher_a_run_has_ended_as_its_file_says(console, status, kind):
    cells = planned("seed=0,1", "name=s")
    info = leave(cells[0], status)
    ends = hydra_launcher.ends_without_launcher(cells, ValueError("gone"), console)
    assert kinds(cells, ends) == [kind, "waiting"]
    assert ends[cells[0].run].info == info


def test_a_run_that_died_with_its_launcher_has_failed_with_the_same_cause(console):
    cells = planned("seed=0,1", "name=s")
    leave(cells[0], "running")
    ends = hydra_launcher.ends_without_launcher(cells, ValueError("gone"), console)
    assert kinds(cells, ends) == ["failed", "waiting"]
    assert ends[cells[0].run].cause == "ValueError: gone" and status_of(cells[0]) == "failed"
    assert console.file.getvalue() == ""


def test_where_no_run_was_started_all_have_failed(console):
    cells = planned("seed=0,1", "name=s")
    ends = hydra_launcher.ends_without_launcher(cells, ValueError("gone"), console)
    assert [ends[cell.run] for cell in cells] == [RunEnd("failed", cause="ValueError: gone")] * 2


def test_runs_that_go_on_are_waited_for(console, monkeypatch):
    cells = planned("seed=0,1", "name=s")
    leave(cells[1], "interrupted")
    held = lock.claim(cells[0].folder, 10)
    held.__enter__()
    leave(cells[0], "running")
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 2:
            leave(cells[0], "completed")
            held.__exit__(None, None, None)

    monkeypatch.setattr(hydra_launcher, "time", SimpleNamespace(sleep=nap))
    ends = hydra_launcher.ends_without_launcher(cells, ValueError("gone"), console)
    assert kinds(cells, ends) == ["done", "interrupted"]
    assert len(naps) == 2
    assert console.file.getvalue() == "the launcher ended (ValueError: gone); 1 runs go on\n"


# A whole sweep ----------------------------------------------------------------------------------


def job(value, failed=False):
    """What a launcher of Hydra returns for a job."""
    result = JobReturn(status=JobStatus.FAILED if failed else JobStatus.COMPLETED)
    result.return_value = value
    return result


@pytest.fixture
def launched(monkeypatch, console):
    """Launch a sweep by a function of its jobs; returns cells, ends, the signal, and the jobs."""

    def launch(work, *words):
        seen = []

        def run_jobs(jobs, first):
            assert first == 0
            seen.extend(jobs)
            return work()

        monkeypatch.setattr(
            Plugins,
            "instantiate_launcher",
            lambda self, context, task, config: SimpleNamespace(launch=run_jobs),
        )
        with composing("hydra/launcher=basic", "name=s", *words) as (request, composer):
            config = hydra_launcher.config_of(request, composer)
            cells = plan.cells(request, composer)
            ends = {}
            number = hydra_launcher.launch(cells, config, ends, console)
        return cells, ends, number, seen

    return launch


def test_each_job_composes_its_run_in_its_folder(launched):
    cells, _, _, jobs = launched(lambda: [job(RunEnd("done"))] * 2, "seed=0,1")
    for cell, words in zip(cells, jobs, strict=True):
        assert f"++seed={cell.config.seed}" in words
        assert words[-1] == f"hydra.sweep.subdir='{cell.folder.name}'"
        assert "++name='s'" in words


def test_jobs_end_as_they_say(launched):
    ends = [RunEnd("done"), RunEnd("held", cause="why")]
    cells, found, number, _ = launched(lambda: [job(end) for end in ends], "seed=0,1")
    assert [found[cell.run] for cell in cells] == ends and number is None


def test_a_job_that_failed_after_its_run_was_done_is_done(launched):
    cells = planned("seed=0,1,2", "name=s")
    error = RuntimeError("lost")

    def work():
        leave(cells[0], "completed")
        leave(cells[1], "running")
        return [job(error, failed=True)] * 3

    _, ends, _, _ = launched(work, "seed=0,1,2")
    assert kinds(cells, ends) == ["done", "failed", "failed"]
    assert ends[cells[0].run].info["status"] == "completed"
    assert [ends[cell.run].cause for cell in cells[1:]] == ["RuntimeError: lost"] * 2
    assert status_of(cells[1]) == "failed"


def test_an_error_of_the_launcher_leaves_what_the_files_say(launched):
    cells = planned("seed=0,1", "name=s")

    def work():
        leave(cells[0], "completed")
        raise ValueError("gone")

    _, ends, number, _ = launched(work, "seed=0,1")
    assert kinds(cells, ends) == ["done", "waiting"] and number is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_stops_the_launcher_and_its_handlers_are_as_before(launched, number):
    cells, before = planned("seed=0,1,2", "name=s"), signal.getsignal(number)

    def work():
        leave(cells[0], "interrupted")
        leave(cells[1], "running")
        signal.raise_signal(number)

    _, ends, stopped_by, _ = launched(work, "seed=0,1,2")
    assert stopped_by == number and signal.getsignal(number) is before
    assert kinds(cells, ends) == ["interrupted", "waiting", "waiting"]
    assert ends[cells[1].run].info["status"] == "running"
