"""A sweep survives the death of its runs, and signals stop it."""

import json
import os
import signal
import threading
import time

import pytest

from stability.config.knobs import Train
from stability.sweep import lock, pool, resume, worker
from stability.sweep.pool import Pool
from stub_runs import SETTINGS, Recorder, cells, execute, kinds, run_file

LONG = {"step_s": 0.05, "train": Train(steps=2000)}


def test_no_death_ends_the_sweep(tmp_path):
    ends = ("completes", "raise", "exit", "_exit", "kill", "memory", "completes")
    made = cells(tmp_path, *ends)
    runs, _ = execute(made, workers=2)
    assert kinds(runs) == ["done", *["failed"] * 5, "done"]
    statuses = [run_file(cell)["status"] for cell in made]
    assert statuses == ["completed", *["failed"] * 5, "completed"]
    causes = [run_file(cell)["error"] for cell in made[1:6]]
    assert causes[0] == "ValueError: the loss has a bad shape and more"
    assert causes[1] == "SystemExit: 3"
    assert "exit code 7" in causes[2]
    assert "SIGKILL" in causes[3] and "memory" in causes[3]
    assert causes[4] == "MemoryError"
    assert not list(tmp_path.glob("*/*.lock"))


def test_fail_fast_stops_at_the_first_failure(tmp_path):
    made = cells(tmp_path, "raise", "completes", "completes")
    runs, _ = execute(made, fail_fast=True)
    assert kinds(runs) == ["failed"] and runs.stopped_by is None
    assert not made[2].folder.exists()


def test_steps_are_reported(tmp_path):
    _, observer = execute(cells(tmp_path, "completes"))
    assert [row["step"] for _, row in observer.rows] == [0, 1]


@pytest.mark.parametrize("isolate", [True, False])
def test_runs_share_a_process_unless_each_shall_have_its_own(tmp_path, isolate):
    made = cells(tmp_path, "completes", "completes", "completes")
    execute(made, isolate=isolate)
    assert len({run_file(cell)["pid"] for cell in made}) == (3 if isolate else 1)


# -- signals ---------------------------------------------------------------------------------------


def handlers():
    return {n: signal.getsignal(n) for n in pool.SWEEP_STOP_SIGNALS}


def send_at_first_report(observer, *numbers):
    """Send signals to this process, a second apart, from the first step on."""

    def send():
        for number in numbers:
            time.sleep(1)
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    observer.report = lambda cell, row: None if thread.ident else thread.start()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
)
def test_at_a_signal_runs_write_their_state_and_end(tmp_path, number):
    made = cells(tmp_path, "completes", "completes", "completes", **LONG)
    observer, before = Recorder(), handlers()
    send_at_first_report(observer, number)
    runs = Pool([SETTINGS, SETTINGS], observer)
    runs.run(made)
    assert runs.stopped_by == number and handlers() == before
    assert kinds(runs) == ["interrupted", "interrupted"] and observer.stopped == [2]
    assert [run_file(cell)["status"] for cell in made[:2]] == ["interrupted"] * 2
    assert not made[2].folder.exists()


@pytest.mark.parametrize(
    "numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)]
)
def test_a_second_signal_ends_a_run_that_ignores_the_first(tmp_path, numbers):
    (cell,) = cells(tmp_path, "ignores SIGTERM")
    observer = Recorder()
    send_at_first_report(observer, *numbers)
    runs = Pool([SETTINGS], observer)
    began = time.monotonic()
    runs.run([cell])
    assert time.monotonic() - began < worker.GRACE_PERIOD
    assert kinds(runs) == ["interrupted"] and run_file(cell)["status"] == "interrupted"
    assert runs.stopped_by == numbers[0]


def test_a_run_that_ignores_the_signal_is_killed_after_the_grace_period(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "GRACE_PERIOD", 0.5)
    (cell,) = cells(tmp_path, "ignores SIGTERM")
    observer = Recorder()
    send_at_first_report(observer, signal.SIGTERM)
    runs = Pool([SETTINGS], observer)
    runs.run([cell])
    assert kinds(runs) == ["interrupted"] and run_file(cell)["status"] == "interrupted"
    assert runs.ends["run0"].cause == "it did not stop in time"


def test_after_a_sweep_signals_are_handled_as_before(tmp_path):
    before = handlers()
    runs, _ = execute(cells(tmp_path, "completes"))
    assert handlers() == before and runs.stopped_by is None


def test_an_error_of_the_observer_ends_the_sweep_and_its_workers(tmp_path):
    made = cells(tmp_path, "completes", **LONG)
    observer, before = Recorder(), handlers()

    def fail(cell, row):
        observer.report = Recorder().report
        raise RuntimeError("a bug")

    observer.report = fail
    with pytest.raises(RuntimeError, match="a bug"):
        Pool([SETTINGS], observer).run(made)
    assert handlers() == before
    assert run_file(made[0])["status"] == "interrupted"


# -- locks -----------------------------------------------------------------------------------------


def test_a_run_of_another_command_is_left_alone(tmp_path):
    made = cells(tmp_path, "completes", "completes")
    with lock.claim(made[0].folder, 10):
        runs, _ = execute(made)
    assert kinds(runs) == ["held", "done"]
    assert str(os.getpid()) in runs.ends["run0"].cause
    assert not (made[0].folder / "run.json").exists()


def test_a_run_that_another_command_has_finished_is_not_made_again(tmp_path):
    made = cells(tmp_path, "completes")
    execute(made)
    before = run_file(made[0])
    runs, _ = execute(made)
    assert kinds(runs) == ["done"] and run_file(made[0]) == before


def test_a_run_of_another_command_is_not_marked_as_ended(tmp_path):
    (cell,) = cells(tmp_path, "kill")
    execute([cell])
    (cell.folder / "run.json").write_text(json.dumps(run_file(cell) | {"status": "running"}))
    with lock.claim(cell.folder, 10):
        resume.mark_ended(cell.folder, "failed", "why", 10)
        assert run_file(cell)["status"] == "running"
    resume.mark_ended(cell.folder, "failed", "why", 10)
    assert run_file(cell)["status"] == "failed"
