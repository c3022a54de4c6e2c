"""The launcher: workers that fail, die and are stopped; and the claims of runs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.process import BaseProcess

import pytest

from stability.config.knobs import ConfigError, Train
from stability.sweep import lock, pool, resume, worker, worker_process
from stability.sweep.pool import Pool
from stub_runs import CONFIG, HERE, Notes, cells, kinds, run, state


def test_no_death_takes_the_sweep_along(tmp_path):
    made = cells(tmp_path, "well", "raise", "exit", "_exit", "kill", "memory", "well")
    runs = run(made, seats=2)
    assert kinds(runs) == ["done", *["failed"] * 5, "done"]
    assert [state(cell)["status"] for cell in made] == ["completed", *["failed"] * 5, "completed"]
    causes = [state(cell)["error"] for cell in made[1:6]]
    assert causes[0] == "ValueError: the loss is a teapot and more"
    assert causes[1] == "SystemExit: 3"
    assert "exit code 7" in causes[2]
    assert "SIGKILL" in causes[3] and "memory" in causes[3]
    assert causes[4] == "MemoryError"
    assert not list(tmp_path.glob("*/*.lock"))


@pytest.fixture
def failing_starts(monkeypatch):
    """Errors that the next starts of a process raise, in turn; then they succeed."""
    errors, start = [], BaseProcess.start

    def start_or_fail(process):
        if errors:
            raise errors.pop(0)
        start(process)

    monkeypatch.setattr(BaseProcess, "start", start_or_fail)
    return errors


@pytest.mark.parametrize(
    "error", [EOFError(), RuntimeError("can't start new thread"), BlockingIOError(11, "no fork")]
)
def test_a_worker_that_cannot_be_started_costs_one_run(tmp_path, failing_starts, error):
    failing_starts += [error, error]
    made = cells(tmp_path, "well", "well", "well")
    runs = run(made)
    assert kinds(runs) == ["failed", "done", "done"]
    cause = runs.outcomes["run0"].cause
    assert "no worker could be started" in cause and type(error).__name__ in cause
    assert [outcome.kind for _, outcome in runs._watcher.ends] == ["failed", "done", "done"]
    assert runs._watcher.starts == ["run1", "run2"]


def test_a_worker_that_cannot_be_started_is_tried_once_more(tmp_path, failing_starts):
    failing_starts += [EOFError()]
    assert kinds(run(cells(tmp_path, "well"))) == ["done"]


def test_where_no_process_can_be_started_the_grid_is_refused(tmp_path, failing_starts):
    failing_starts += [EOFError()]
    with pytest.raises(ConfigError, match=r"no process can be started \(EOFError\)"):
        worker_process.examine(cells(tmp_path, "well"), [])


def test_a_worker_is_reused_until_a_run_fails(tmp_path):
    made = cells(tmp_path, "well", "well", "raise", "well", "well")
    run(made)
    pids = [state(cell)["pid"] for cell in made]
    assert pids[0] == pids[1] == pids[2] != pids[3] == pids[4]


def test_an_isolated_run_has_a_process_of_its_own(tmp_path):
    made = cells(tmp_path, "well", "well", "well", isolate=True)
    run(made)
    assert len({state(cell)["pid"] for cell in made}) == 3


def test_fail_fast_stops_at_the_first_failure(tmp_path):
    made = cells(tmp_path, "raise", "well", "well", fail_fast=True)
    assert kinds(run(made)) == ["failed"]
    assert not made[2].folder.exists()


def test_steps_are_reported_and_output_goes_to_the_log(tmp_path):
    (cell,) = cells(tmp_path, "well")
    runs = run([cell])
    assert [row["step"] for _, row in runs._watcher.rows] == [0, 1]
    assert "said by the job" in (cell.folder / "run.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_stops_runs_politely(tmp_path, number):
    made = cells(tmp_path, "well", "well", "well", step_s=0.05, train=Train(steps=2000))
    stop = threading.Timer(1.0, os.kill, (os.getpid(), number))
    watcher = Notes()
    watcher.report = lambda cell, row: None if stop.ident else stop.start()
    setup = worker.Setup(trusted=(HERE,), execute="stub_job")
    before = signal.getsignal(number)
    runs = Pool([setup, setup], watcher, CONFIG)
    runs.run(made)
    assert runs.signals == [number] and signal.getsignal(number) == before
    assert kinds(runs) == ["interrupted", "interrupted"] and watcher.asked == [2]
    assert [state(cell)["status"] for cell in made[:2]] == ["interrupted"] * 2
    assert not made[2].folder.exists()


def test_a_run_that_does_not_listen_is_ended_by_a_second_signal(tmp_path):
    (cell,) = cells(tmp_path, "deaf")

    def twice():
        for _ in range(2):
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGINT)

    watcher = Notes()
    watcher.report = lambda cell, row: threading.Thread(target=twice).start()
    runs = Pool([worker.Setup(trusted=(HERE,), execute="stub_job")], watcher, CONFIG)
    began = time.monotonic()
    runs.run([cell])
    assert time.monotonic() - began < 20
    assert kinds(runs) == ["interrupted"] and state(cell)["status"] == "interrupted"


def test_workers_die_with_their_parent(tmp_path):
    program = (
        "import sys, stub_runs as t\n"
        "from pathlib import Path\n"
        "if __name__ == '__main__':\n"
        "    made = t.cells(Path(sys.argv[1]), 'well', step_s=0.05, train=t.Train(steps=10**6))\n"
        "    t.run(made)\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(program)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    parent = subprocess.Popen([sys.executable, script, tmp_path], env=environment)
    ours = tmp_path / "end-well_run0" / "run.json"
    wait_for(ours.exists)
    pid = json.loads(ours.read_text())["pid"]
    parent.kill()
    parent.wait()
    wait_for(lambda: lock._born(pid) is None)
    assert json.loads(ours.read_text())["status"] == "interrupted"


def wait_for(what, seconds=30):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_each_seat_has_a_gpu_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-7")
    made = cells(tmp_path, "well", "well", "well", device="cuda", n_jobs="auto", step_s=0.3)
    setups = pool.setups(made, [HERE], 2)
    assert [s.device for s in setups] == ["2", "GPU-7"]
    setups = [worker.Setup(s.trusted, s.device, "stub_job") for s in setups]
    Pool(setups, Notes(), CONFIG).run(made)
    assert {state(cell)["device"] for cell in made} == {"2", "GPU-7"}


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
    monkeypatch.setattr(pool, "cores", lambda: 4)
    made = cells(tmp_path, *["well"] * 5, device=device, n_jobs=n_jobs, threads=threads)
    assert [setup.device for setup in pool.setups(made, [], gpus)] == expected


# -- claims --------------------------------------------------------------------------------------


def test_a_claimed_run_is_left_alone(tmp_path):
    made = cells(tmp_path, "well", "well")
    with lock.claim(made[0].folder, 10):
        runs = run(made)
    assert kinds(runs) == ["held", "done"]
    assert str(os.getpid()) in runs.outcomes["run0"].cause
    assert not (made[0].folder / "run.json").exists()


def test_a_run_that_another_command_has_finished_is_not_made_again(tmp_path):
    made = cells(tmp_path, "well")
    run(made)
    before = state(made[0])
    runs = run(made)
    assert kinds(runs) == ["done"] and state(made[0]) == before


def test_two_claims_do_not_hold_at_once(tmp_path):
    with lock.claim(tmp_path, 10), pytest.raises(lock.Held), lock.claim(tmp_path, 10):
        pass
    with lock.claim(tmp_path, 10):
        pass
    assert list(tmp_path.iterdir()) == []


def owner(tmp_path, **changes):
    mine = {"host": lock.socket.gethostname(), "pid": os.getpid(), "born": "1", "token": "x"}
    path = tmp_path / lock.LOCK_FILE
    path.write_text(json.dumps(mine | changes))
    return path


@pytest.mark.parametrize("changes", [{"pid": 2**22 + 1}, {"born": "1"}])
def test_the_claim_of_a_dead_process_is_taken_over_at_once(tmp_path, changes):
    owner(tmp_path, **changes)
    with lock.claim(tmp_path, 10):
        pass


def test_the_claim_of_another_machine_is_taken_over_when_its_heart_has_stopped(tmp_path):
    path = owner(tmp_path, host="elsewhere")
    with pytest.raises(lock.Held, match="elsewhere"), lock.claim(tmp_path, 10):
        pass
    os.utime(path, (time.time() - 601,) * 2)
    with lock.claim(tmp_path, 10):
        pass


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"host": "HOST"}', '{"host": "HOST", "pid": "7"}', "\xff"]
)
def test_a_claim_that_names_nobody_counts_only_while_it_may_still_be_written(tmp_path, content):
    path = tmp_path / lock.LOCK_FILE
    text = content.replace("HOST", lock.socket.gethostname())
    path.write_text(text, encoding="latin-1")
    with pytest.raises(lock.Held), lock.claim(tmp_path, 10):
        pass
    os.utime(path, (time.time() - 2 * lock.WRITTEN,) * 2)
    with lock.claim(tmp_path, 10):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_claim_that_cannot_be_written_is_none(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    with monkeypatch.context() as disk, pytest.raises(OSError, match="no space left"):
        disk.setattr(lock.json, "dump", full)
        with lock.claim(tmp_path, 10):
            pass
    assert list(tmp_path.iterdir()) == []


def test_who_died_while_it_looked_at_a_claim_blocks_it_for_a_minute(tmp_path):
    owner(tmp_path)
    guard = tmp_path / f"{lock.LOCK_FILE}.check"
    guard.touch()
    for age in (0, 50, 61):
        os.utime(guard, (time.time() - age,) * 2)
        with pytest.raises(lock.Held), lock.claim(tmp_path, 10):
            pass
    with lock.claim(tmp_path, 10):
        pass


def test_a_heart_beats_and_a_lost_claim_ends_the_process(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from stability.sweep import lock\n"
        "with lock.claim(Path(sys.argv[1]), 0.01):\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path])
    path = tmp_path / lock.LOCK_FILE
    wait_for(path.exists)
    first = path.stat().st_mtime_ns
    wait_for(lambda: path.stat().st_mtime_ns > first)
    owner(tmp_path, host="elsewhere")
    assert process.wait(timeout=20) == lock.LOST
    assert json.loads(path.read_text())["host"] == "elsewhere"


def test_many_processes_race_for_a_stale_claim_and_one_wins(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from stability.sweep import lock\n"
        "while time.time() < float(sys.argv[2]): pass\n"
        "try:\n"
        "    with lock.claim(Path(sys.argv[1]), 10):\n"
        "        time.sleep(2); print('won')\n"
        "except lock.Held: pass\n"
    )
    owner(tmp_path)
    go = str(time.time() + 3)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, tmp_path, go], stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    assert "".join(racer.communicate()[0] for racer in racers) == "won\n"


def test_settling_does_not_touch_a_run_that_somebody_else_has(tmp_path):
    (cell,) = cells(tmp_path, "kill")
    run([cell])
    (cell.folder / "run.json").write_text(json.dumps(state(cell) | {"status": "running"}))
    with lock.claim(cell.folder, 10):
        resume.settle(cell.folder, "failed", "why", 10)
        assert state(cell)["status"] == "running"
