"""Worker processes: started, used again, replaced, ended with their parent."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from stability.config.knobs import ConfigError, Train
from stability.sweep import lock, pool, worker, worker_process
from stub_runs import CONFIG, HERE, SETTINGS, Recorder, cells, execute, kinds, run_file, wait_for


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
    runs, observer = execute(cells(tmp_path, "completes", "completes", "completes"))
    assert kinds(runs) == ["failed", "done", "done"]
    cause = runs.ends["run0"].cause
    assert "no worker could be started" in cause and type(error).__name__ in cause
    assert [end.kind for _, end in observer.ends] == ["failed", "done", "done"]
    assert observer.starts == ["run1", "run2"]


def test_a_worker_that_cannot_be_started_is_tried_once_more(tmp_path, failing_starts):
    failing_starts += [EOFError()]
    runs, _ = execute(cells(tmp_path, "completes"))
    assert kinds(runs) == ["done"]


def test_if_no_process_can_be_started_the_grid_is_refused(tmp_path, failing_starts):
    failing_starts += [EOFError()]
    with pytest.raises(ConfigError, match=r"no process can be started \(EOFError\)"):
        worker_process.check_and_count_gpus(cells(tmp_path, "completes"), [])


def test_a_worker_is_used_again_until_a_run_fails(tmp_path):
    made = cells(tmp_path, "completes", "completes", "raise", "completes", "completes")
    execute(made)
    pids = [run_file(cell)["pid"] for cell in made]
    assert pids[0] == pids[1] == pids[2] != pids[3] == pids[4]


def test_a_worker_that_died_while_it_was_idle_is_replaced(tmp_path):
    first, second = cells(tmp_path, "completes", "completes")
    process = worker_process.WorkerProcess(SETTINGS)

    def end_of(cell):
        process.submit(cell)
        while (message := process.receive())[0] in ("started", "report"):
            pass
        return message[0]

    assert end_of(first) == "done"
    os.kill(run_file(first)["pid"], signal.SIGKILL)
    wait_for(lambda: not lives(run_file(first)["pid"]))
    assert end_of(second) == "done"
    assert process.close() == 0 and process.close() is None


def test_ctrl_c_in_the_terminal_does_not_reach_a_run(tmp_path):
    (cell,) = cells(tmp_path, "completes", step_s=0.05, train=Train(steps=20))
    observer = Recorder()

    def interrupt(cell, row):
        os.kill(run_file(cell)["pid"], signal.SIGINT)

    observer.report = interrupt
    runs = pool.Pool([SETTINGS], observer)
    runs.run([cell])
    assert kinds(runs) == ["done"] and run_file(cell)["status"] == "completed"


def test_an_isolated_run_has_a_process_of_its_own(tmp_path):
    made = cells(tmp_path, "completes", "completes", "completes")
    execute(made, isolate=True)
    assert len({run_file(cell)["pid"] for cell in made}) == 3


def test_output_goes_to_the_log(tmp_path):
    (cell,) = cells(tmp_path, "completes")
    execute([cell])
    assert "printed by the job" in (cell.folder / "run.log").read_text()


def test_a_run_leaves_no_file_open_and_gives_the_output_back(tmp_path, capfd):
    log = tmp_path / "deep" / "run.log"
    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    for word in ("one", "two"):
        with worker._output_to(log):
            os.write(1, f"{word} out\n".encode())
            os.write(2, f"{word} err\n".encode())
    os.write(1, b"after\n")
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before
    assert log.read_text() == "one out\none err\ntwo out\ntwo err\n"
    assert capfd.readouterr() == ("after\n", "")


def test_workers_end_with_their_parent(tmp_path):
    program = (
        "import sys, stub_runs\n"
        "from pathlib import Path\n"
        "if __name__ == '__main__':\n"
        "    changes = {'step_s': 0.05, 'train': stub_runs.Train(steps=10**6)}\n"
        "    stub_runs.execute(stub_runs.cells(Path(sys.argv[1]), 'completes', **changes))\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(program)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    parent = subprocess.Popen([sys.executable, script, tmp_path], env=environment)
    path = tmp_path / "end-completes_run0" / "run.json"
    wait_for(path.exists)
    pid = json.loads(path.read_text())["pid"]
    assert lives(pid)
    parent.kill()
    parent.wait()
    wait_for(lambda: not lives(pid))
    assert json.loads(path.read_text())["status"] == "interrupted"


def lives(pid):
    """Whether a process has not ended; a zombie has."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (lock.LOST, "another command took over its lock"),
        (3, "its process ended with exit code 3"),
        (0, "its process ended with exit code 0"),
        (-signal.SIGSEGV, "its process was killed (SIGSEGV)"),
        (-signal.SIGKILL, "its process was killed (SIGKILL; was the machine out of memory?)"),
    ],
)
def test_an_exit_code_is_said_in_words(code, words):
    assert worker_process.describe_exit(code) == words


# -- one run in this process -----------------------------------------------------------------------


def handlers():
    return {n: signal.getsignal(n) for n in pool.SWEEP_STOP_SIGNALS}


@pytest.mark.parametrize("end", ["completes", "raise"])
def test_after_a_run_signals_are_handled_as_before(tmp_path, end):
    before = handlers()
    try:
        worker.run(replace(CONFIG, end=end), tmp_path, lambda row: None, "stub_job")
    except ValueError:
        assert end == "raise"
    assert handlers() == before


@pytest.mark.parametrize("number", worker.RUN_STOP_SIGNALS)
def test_a_signal_asks_the_run_to_stop_before_its_next_step(tmp_path, number):
    rows = []

    def report(row):
        rows.append(row)
        os.kill(os.getpid(), number)

    config = replace(CONFIG, train=Train(steps=9))
    assert worker.run(config, tmp_path, report, "stub_job")["status"] == "interrupted"
    assert len(rows) == 1


def test_a_run_whose_lock_is_held_is_not_started(tmp_path):
    with lock.claim(tmp_path, 10), pytest.raises(lock.LockHeld):
        worker.run(CONFIG, tmp_path, lambda row: None, "stub_job")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_launchers_handler_is_called_after_the_run_has_written_its_state(tmp_path, number):
    """Slurm's jobs requeue themselves in such a handler."""
    (cell,) = cells(tmp_path, "completes", step_s=0.01, train=Train(steps=1000))
    called = []
    before = signal.signal(number, lambda *_: called.append(run_file(cell)["status"]))
    try:
        info = worker.run(
            cell.config, cell.folder, lambda row: os.kill(os.getpid(), number), SETTINGS.execute
        )
    finally:
        signal.signal(number, before)
    assert info["status"] == "interrupted" and called == ["interrupted"]


SMALL_STACK = "import resource, sys; resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, -1))"


def test_a_net_too_deep_for_the_usual_stack_runs(tmp_path):
    """1,000 blocks on 1 MiB, as 8,000 on the usual 8 MiB: without more it ends by SIGSEGV."""
    words = ["depth=1000", "model.width=4", "model.heads=1", "model.context=4", "train.steps=0"]
    words += ["train.batch_size=1", "record.kinds=[grad]", "name=s", "device=cpu"]
    code = f"{SMALL_STACK}; from stability import run; sys.exit(run.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_that_its_process_never_began_is_sent_to_another(tmp_path):
    """Linux may keep the pipe of a killed process open for a moment: what is sent there is lost."""
    first, second = cells(tmp_path, "completes", "completes")
    process = worker_process.WorkerProcess(SETTINGS)
    process.submit(first)
    while process.receive()[0] != "done":
        pass
    pid = run_file(first)["pid"]
    os.kill(pid, signal.SIGSTOP)  # it takes the next run into its pipe and does not begin it
    process.submit(second)
    os.kill(pid, signal.SIGKILL)
    words = []
    while not words or words[-1] not in ("done", "failed"):
        words.append(process.receive()[0])
    assert words[0] == "started" and words[-1] == "done"
    assert run_file(second)["pid"] != pid
    assert process.close() == 0
