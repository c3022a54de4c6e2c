"""A planned sweep: several commands share it, take over from dead ones, and stop at a step."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from stability import status, work
from stability.config.knobs import ConfigError
from stability.results.atomic import Unreadable
from stability.sweep import plan_file

TINY = ["model.width=16", "model.heads=2", "model.context=16", "train.eval_every=0"]
TINY += ["train.eval_batches=1", "device=cpu", "n_jobs=1", "name=s"]


def plan(tmp_path, *words):
    done = subprocess.run(
        [sys.executable, "-m", "stability.run", *TINY, *words, "--plan"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return tmp_path / "outputs" / "s"


def start(sweep, *words, module="work"):
    return subprocess.Popen(
        [sys.executable, "-m", f"stability.{module}", str(sweep), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def runs(sweep):
    return {p.parent.name: json.loads(p.read_text()) for p in sorted(sweep.glob("*/run.json"))}


def statuses(sweep):
    return sorted(run["status"] for run in runs(sweep).values())


def group(run):
    """The process group of a run that goes on; None after its end."""
    return os.getpgid(run["pid"]) if run["status"] == "running" else None


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_plan_holds_the_runs_with_the_dearest_first_and_runs_nothing(tmp_path):
    sweep = plan(tmp_path, "depth=1,3,2", "train.steps=2")
    assert [path.name for path in sweep.iterdir()] == ["plan.jsonl"]
    cells, _ = plan_file.read(sweep)
    assert [cell.label for cell in cells] == ["depth-3", "depth-2", "depth-1"]
    assert all(cell.folder.name == f"{cell.label}_{cell.run}" for cell in cells)


def test_a_worker_needs_no_hydra(tmp_path):
    sweep = plan(tmp_path, "depth=1", "train.steps=2")
    code = "import sys; sys.modules['hydra'] = sys.modules['omegaconf'] = None\n"
    code += f"from stability import work; sys.exit(work.main([{str(sweep)!r}]))"
    script = tmp_path / "script.py"
    script.write_text(
        f"if __name__ == '__main__':\n    {code.replace(chr(10), chr(10) + '    ')}\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert statuses(sweep) == ["completed"]


def test_several_workers_share_a_plan_and_one_that_is_killed_is_replaced(tmp_path):
    sweep = plan(tmp_path, "depth=1,2,3,4,5,6", "train.steps=150")
    workers = [start(sweep) for _ in range(3)]
    wait_for(lambda: len(runs(sweep)) >= 3)
    victim = workers[0]
    held = {name: run["pid"] for name, run in runs(sweep).items() if group(run) == victim.pid}
    assert held
    os.killpg(victim.pid, signal.SIGKILL)
    said = [each.communicate(timeout=120)[0] for each in workers]
    assert [each.returncode for each in workers] == [-signal.SIGKILL, 0, 0], said
    assert statuses(sweep) == ["completed"] * 6
    done = [line.split()[0] for text in said for line in text.splitlines() if "completed" in line]
    assert len(done) == len(set(done))
    taken_over = [name for name, pid in held.items() if runs(sweep)[name]["pid"] != pid]
    assert taken_over == list(held)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_preempted_worker_stops_at_a_step_and_another_goes_on(tmp_path, number):
    sweep = plan(tmp_path, "depth=1", "train.steps=3000")
    first = start(sweep)
    wait_for(lambda: any(sweep.glob("*/steps.parts/*")) or any(sweep.glob("*/steps.parquet")))
    first.send_signal(number)
    said, _ = first.communicate(timeout=60)
    assert first.returncode == 143, said
    (run,) = runs(sweep).values()
    assert run["status"] == "interrupted" and 0 < run["steps_done"] < 3000
    second = start(sweep)
    assert second.communicate(timeout=120)[0] and second.returncode == 0
    (run,) = runs(sweep).values()
    assert run["status"] == "completed" and run["steps_done"] == 3000


def test_a_worker_ends_when_its_time_is_up(tmp_path):
    sweep = plan(tmp_path, "depth=1,2", "train.steps=1000000")
    worker = start(sweep, "--seconds", "15")
    said, _ = worker.communicate(timeout=90)
    assert worker.returncode == 0, said
    assert statuses(sweep) == ["interrupted"]


def test_a_failed_run_is_named_by_its_cause_and_taken_again_only_if_asked(tmp_path):
    sweep = plan(tmp_path, "depth=1,2", "train.steps=2")
    cells, _ = plan_file.read(sweep)
    for cell in cells:
        cell.folder.mkdir()
        state = {"status": "failed", "identity": cell.identity, "steps_done": 0, "error": "no luck"}
        (cell.folder / "run.json").write_text(json.dumps(state))
    free = work.FreeRuns(cells, retry=False)
    assert free.take() is None
    free = work.FreeRuns(cells, retry=True)
    assert [free.take(), free.take(), free.take()] == [*cells, None]
    shown = status.Status()
    for cell in cells:
        shown.add(cell)
    assert shown.lines() == [
        "2 runs: 2 failed",
        f"failed 2 times: no luck  ({cells[0].folder.name})",
    ]


def test_the_time_left_follows_from_the_cost_of_what_is_finished(tmp_path, capsys):
    sweep = plan(tmp_path, "seed=0,1,2", "train.steps=2")
    assert status.main([str(sweep)]) == 0
    assert capsys.readouterr().out == "3 runs: 3 waiting\n"
    worker = start(sweep)
    assert worker.communicate(timeout=60)[0] and worker.returncode == 0
    cells, _ = plan_file.read(sweep)
    path = cells[0].folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "running"}))
    for cell in cells[1:]:
        path = cell.folder / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 30.0}))
    assert status.main([str(sweep)]) == 0
    assert capsys.readouterr().out == "3 runs: 2 completed, 1 dead\nleft: 30 s by one worker\n"


def test_a_plan_whose_data_changed_is_refused(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("words " * 500)
    sweep = plan(tmp_path, "depth=1", "data=text", f"data.path={text}")
    text.write_text("other " * 500)
    with pytest.raises(ConfigError, match="the data or the code changed"):
        plan_file.read(sweep)
    assert work.main([str(sweep)]) == status.main([str(sweep)]) == 2


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]\n", b"\xff"])
def test_a_plan_that_is_absent_or_damaged_is_refused(tmp_path, content, capsys):
    if content is not None:
        (tmp_path / "plan.jsonl").write_bytes(content)
    with pytest.raises(Unreadable, match=r"plan\.jsonl"):
        plan_file.read(tmp_path)
    assert work.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_outside_of_the_sweep_is_refused(tmp_path):
    sweep = plan(tmp_path, "depth=1")
    line = json.loads((sweep / "plan.jsonl").read_text())
    line["folder"] = f"../{line['run']}"
    (sweep / "plan.jsonl").write_text(json.dumps(line))
    with pytest.raises(Unreadable, match="is damaged"):
        plan_file.read(sweep)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_that_is_none_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        work.main([".", "--seconds", text])
    assert f"{text}: must be a number of seconds > 0" in capsys.readouterr().err
