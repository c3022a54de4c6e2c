"""The command from end to end, in processes of its own, with real runs of a tiny model."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from planning import planned
from stability.cli import flags, help_text, hydra_launcher
from stability.config import folders
from stability.config.knobs import GROUPS, KNOBS, Config
from stability.sweep.pool import RunEnd

TINY = ["model.width=16", "model.heads=2", "model.context=16", "depth=1", "train.steps=2"]
TINY += ["train.eval_every=0", "train.eval_batches=1", "device=cpu"]


def command(*words, cwd, **environment):
    return subprocess.run(
        [sys.executable, "-m", "stability.run", *words],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def runs(sweep):
    return {p.parent.name: json.loads(p.read_text()) for p in sorted(sweep.glob("*/run.json"))}


# -- help ----------------------------------------------------------------------------------------


def test_help_needs_neither_hydra_nor_torch_nor_a_second(tmp_path):
    program = (
        "import sys, time; began = time.perf_counter(); from stability.run import main\n"
        "assert main(['norm=pre', '--help']) == 0; took = time.perf_counter() - began\n"
        "assert not {'hydra', 'torch', 'pandas', 'pyarrow'} & set(sys.modules), 'heavy'\n"
        "assert took < 1, took\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "usage: python -m stability.run" in done.stdout


def test_help_explains_every_knob_and_lists_every_option():
    text = " ".join(help_text.text().split())
    for knob in KNOBS.values():
        if knob.key.endswith((".label", ".order")) and not knob.key.startswith("norm."):
            continue  # said once
        assert f"{knob.key}=" in text
        assert knob.doc in text
        assert knob.unit in text and knob.legal.text in text
    for group in GROUPS:
        default = {"norm": "pre", "init": "xavier", "model": "nano"}.get(group, "")
        assert f"{', '.join(folders.options(group))} (default: {default}" in text


def test_help_begins_with_the_keys_that_people_use_most():
    text = help_text.text()
    assert set(help_text.COMMON) <= {*KNOBS, *GROUPS}
    places = [text.index(f"\n  {key} ") for key in help_text.COMMON]
    assert places == sorted(places) and places[-1] < text.index("Options, one yaml each")


def test_every_experiment_is_listed_with_a_sentence(tmp_path):
    (tmp_path / "experiments").mkdir()
    mine = "# @package _global_\n# Does mine\n# work? It should.\nname: mine\n# not this\n"
    (tmp_path / "experiments" / "mine.yaml").write_text(mine)
    shown = command("--experiments", "--config-dir", str(tmp_path), cwd=tmp_path)
    lines = shown.stdout.splitlines()
    assert "  mine".ljust(help_text.INDENT) + "Does mine work?" in lines
    for name in folders.experiments():
        (at,) = [i for i, line in enumerate(lines) if line.split()[:1] == [name]]
        sentence = lines[at].partition(name)[2].strip() or lines[at + 1].strip()
        assert len(sentence) > 10, name


def test_help_lists_the_users_own_options(tmp_path):
    (tmp_path / "norm").mkdir()
    (tmp_path / "norm" / "mine.yaml").write_text("")
    for words in (["--config-dir", str(tmp_path)], [f"--config-dir={tmp_path}"]):
        assert flags.parse(["-m", *words, "norm=mine"]).config_dirs == [tmp_path]
    assert flags.parse(["-cd", str(tmp_path), "-cd", "."]).config_dirs == [tmp_path, Path()]
    assert "mine" in help_text.text([tmp_path])


def test_launchers_and_the_config_of_a_run_are_shown(tmp_path):
    shown = command("--hydra-help", cwd=tmp_path).stdout
    assert "hydra/launcher=NAME, where NAME is one of basic, procs" in shown
    assert "_target_: hydra._internal.core_plugins.basic_launcher.BasicLauncher" in shown
    shown = command("--cfg", "job", "depth=3", "experiments=vanishing", cwd=tmp_path)
    config = Config.from_plain(yaml.safe_load(shown.stdout))
    assert (config.depth, config.model.sublayers, config.name) == (3, "mlp", "vanishing")
    assert list(tmp_path.iterdir()) == []


def test_a_class_that_breaks_is_refused_in_a_line_and_traced_for_who_asks(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "breaks.py").write_text(
        "from stability.parts.placements import Pre\n"
        "class Breaks(Pre):\n"
        "    def __init__(self, *place):\n"
        "        {}['missing']\n"
    )
    words = ["--config-dir", "mine", "norm.build._target_=breaks.Breaks", *TINY]
    done = command(*words, cwd=tmp_path)
    why = "Breaks cannot be constructed: KeyError: 'missing'"
    said = f"norm.build={{'_target_': 'breaks.Breaks'}}: {why}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    full = command(*words, cwd=tmp_path, HYDRA_FULL_ERROR="1").stderr
    assert "{}['missing']" in full and full.endswith(said)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# -- running -------------------------------------------------------------------------------------


def test_a_sweep_runs_is_summed_up_and_runs_only_what_is_missing(tmp_path):
    done = command("norm=pre,post", *TINY, "name=s", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = runs(tmp_path / "outputs" / "s")
    assert [name.rpartition("_")[0] for name in found] == ["norm-post", "norm-pre"]
    assert {r["status"] for r in found.values()} == {"completed"}
    (typed,) = {r["command"] for r in found.values()}
    assert typed.startswith("python -m stability.run ") and "norm=pre,post" in typed
    assert (tmp_path / "outputs" / "s" / "runs.parquet").exists()
    for said in ("[2/2]", "validation", "variance", "gradient", "files:   outputs/s", *found):
        assert said in done.stdout
    assert "resume:" not in done.stdout and "\x1b" not in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["outputs"]

    began = time.monotonic()
    assert "2 done already" in command("norm=pre,post", *TINY, "name=s", cwd=tmp_path).stdout
    assert time.monotonic() - began < 15  # without torch
    again = command("norm=pre,post,none", *TINY, "name=s", cwd=tmp_path)
    assert "3 runs, 2 done already" in again.stdout and "[1/1]" in again.stdout
    assert {k: v for k, v in runs(tmp_path / "outputs" / "s").items() if k in found} == found


def test_an_unnamed_sweep_says_how_to_resume_it(tmp_path):
    done = command("-m", *TINY, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("resume:")]
    (sweep,) = (tmp_path / "outputs").iterdir()
    words = line.removeprefix("resume:").split()
    assert words == ["python", "-m", "stability.run", *TINY, f"name={sweep.name}"]
    assert "1 done already" in command(*words[3:], cwd=tmp_path).stdout


def test_a_launcher_of_hydras_own_makes_the_same_runs(tmp_path):
    words = ["norm=pre,post", *TINY, "name=s"]
    assert command(*words, "out=a", cwd=tmp_path).returncode == 0
    done = command(*words, "out=b", "hydra/launcher=basic", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ours, theirs = runs(tmp_path / "a" / "s"), runs(tmp_path / "b" / "s")
    assert {k: r["final_loss"] for k, r in ours.items()} == {
        k: r["final_loss"] for k, r in theirs.items()
    }
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


ELSEWHERE = """
import pickle, subprocess, sys
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import run_job, setup_globals
from hydra.plugins.launcher import Launcher
from omegaconf import open_dict


@dataclass
class Conf:
    _target_: str = "hydra_plugins.elsewhere.Elsewhere"
    result: str = "???"


ConfigStore.instance().store(group="hydra/launcher", name="elsewhere", node=Conf)


class Elsewhere(Launcher):
    def __init__(self, result):
        self.result = result

    def setup(self, *, hydra_context, task_function, config):
        self.parts = hydra_context, task_function, config

    def launch(self, job_overrides, initial_job_idx):
        return [self.job(number, list(words)) for number, words in enumerate(job_overrides)]

    def job(self, number, words):
        sent = pickle.dumps((*self.parts, words, number, Singleton.get_state()["instances"]))
        code = "from hydra_plugins import elsewhere; elsewhere.work()"
        subprocess.run([sys.executable, "-c", code, self.result], input=sent, check=True)
        with open(self.result, "rb") as file:
            return pickle.load(file)


def work():
    setup_globals()
    context, task, config, words, number, Singleton._instances = pickle.load(sys.stdin.buffer)
    composed = context.config_loader.load_sweep_config(config, words)
    with open_dict(composed):
        composed.hydra.job.id = composed.hydra.job.num = number
    keys = "hydra.sweep.dir", "hydra.sweep.subdir"
    result = run_job(task, composed, *keys, hydra_context=context)
    with open(sys.argv[1], "wb") as file:
        pickle.dump(result, file)
"""


def test_a_launcher_may_run_jobs_in_processes_that_share_nothing_with_the_command(tmp_path):
    (tmp_path / "plugins" / "hydra_plugins").mkdir(parents=True)
    (tmp_path / "plugins" / "hydra_plugins" / "elsewhere.py").write_text(ELSEWHERE)
    (tmp_path / "mine" / "norm").mkdir(parents=True)
    (tmp_path / "mine" / "own.py").write_text(
        "from stability.parts.placements import Pre\nclass Own(Pre):\n    pass\n"
    )
    (tmp_path / "mine" / "norm" / "own.yaml").write_text("build: {_target_: own.Own}\n")
    path = os.pathsep.join([str(tmp_path / "plugins"), *os.environ.get("PYTHONPATH", "").split()])
    words = ["norm=own", *TINY, "train.lr=1e-3,3e-3", "experiments=vanishing", "name=s"]
    words += ["activation=tanh", "model.sublayers=attn_mlp", "train.batch_size=2"]
    launcher = ["hydra/launcher=elsewhere", "hydra.launcher.result=result"]
    done = command("--config-dir", "mine", *words, *launcher, cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = runs(tmp_path / "outputs" / "s")
    assert {r["status"] for r in found.values()} == {"completed"}
    assert [name.partition("_")[0] for name in found] == ["lr-0.001", "lr-0.003"]
    assert "1 run, 1 done already" in command(
        "--config-dir", "mine", *words, "train.lr=3e-3", cwd=tmp_path
    ).stdout.replace("\n", " ")


LOSSY = """
import os, pickle, subprocess, sys

from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra_plugins.elsewhere import Conf, Elsewhere

ConfigStore.instance().store(
    group="hydra/launcher", name="lossy",
    node=Conf(_target_="hydra_plugins.lossy.Lossy", result="result"),
)


class Lossy(Elsewhere):
    def launch(self, job_overrides, initial_job_idx):
        jobs = []
        for number, words in enumerate(job_overrides):
            state = Singleton.get_state()["instances"]
            sent = pickle.dumps((*self.parts, list(words), number, state))
            code = "from hydra_plugins import elsewhere; elsewhere.work()"
            job = subprocess.Popen(
                [sys.executable, "-c", code, f"{self.result}{number}"], stdin=subprocess.PIPE
            )
            job.stdin.write(sent)
            job.stdin.close()
            jobs.append(job)
        for number, job in enumerate(jobs):
            if job.wait():
                raise RuntimeError(f"job {number} ended with {job.returncode}")
        return [pickle.load(open(f"{self.result}{n}", "rb")) for n in range(len(jobs))]
"""


def launched(tmp_path, *words):
    """A sweep under a launcher, in the background, and the path of its plugins."""
    plugins = tmp_path / "plugins" / "hydra_plugins"
    plugins.mkdir(parents=True)
    (plugins / "elsewhere.py").write_text(ELSEWHERE)
    (plugins / "lossy.py").write_text(LOSSY)
    path = os.pathsep.join([str(plugins.parent), *os.environ.get("PYTHONPATH", "").split()])
    return subprocess.Popen(
        [sys.executable, "-m", "stability.run", *TINY, "name=s", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def started(tmp_path, number):
    """The runs, once so many of them have begun."""
    deadline = time.monotonic() + 60
    while len(found := runs(tmp_path / "outputs" / "s")) < number:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def statuses(tmp_path):
    return [r["status"] for r in runs(tmp_path / "outputs" / "s").values()]


def test_the_death_of_a_job_is_not_the_failure_of_the_others(tmp_path):
    head = launched(tmp_path, "seed=0,1", "train.steps=600", "hydra/launcher=lossy")
    killed = started(tmp_path, 2)
    os.kill(next(r["pid"] for name, r in killed.items() if "seed-0" in name), signal.SIGKILL)
    said, _ = head.communicate(timeout=120)
    assert head.returncode == 1, said
    assert (
        "the launcher ended (RuntimeError: job 0 ended with -9" in said and "1 runs go on" in said
    )
    assert statuses(tmp_path) == ["failed", "completed"]
    assert said.count("failed:  ") == 1 and "failed:  seed-0: RuntimeError: job 0" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_stops_a_sweep_in_the_process_of_a_launcher(tmp_path, number):
    words = "seed=0,1", "hydra/launcher=basic"
    head = launched(tmp_path, *words, "train.steps=100000")
    started(tmp_path, 1)
    head.send_signal(number)
    said, _ = head.communicate(timeout=60)
    assert head.returncode == 143, said
    assert "resume:  the same command again" in said and "Traceback" not in said
    assert statuses(tmp_path) == ["interrupted"]
    again = command(*TINY, "name=s", *words, "train.steps=3", cwd=tmp_path)
    assert again.returncode == 0 and statuses(tmp_path) == ["completed"] * 2, again.stdout


def test_a_job_that_was_preempted_says_how_to_resume(tmp_path):
    """Slurm sends the signal to the job, and the head sees what it returns."""
    head = launched(tmp_path, "seed=0,1", "train.steps=3000", "hydra/launcher=lossy")
    found = started(tmp_path, 2)
    for run in found.values():
        os.kill(run["pid"], signal.SIGTERM)
    said, _ = head.communicate(timeout=120)
    assert head.returncode == 143, said
    assert "resume:  the same command again" in said
    assert statuses(tmp_path) == ["interrupted"] * 2
    again = command(*TINY, "name=s", "seed=0,1", "train.steps=3", cwd=tmp_path)
    assert again.returncode == 0 and "2 to continue" in again.stdout


def test_a_launcher_that_starts_no_job_fails_every_run(tmp_path, monkeypatch):
    (cell,) = planned(*TINY, f"out={tmp_path}", "name=s")
    ends = hydra_launcher.ends_without_launcher([cell], OSError("no sbatch"), Console(quiet=True))
    assert ends == {cell.run: RunEnd("failed", cause="OSError: no sbatch")}


@pytest.mark.parametrize("launcher", ["procs", "basic"])
def test_a_failed_run_is_listed_with_its_cause_and_the_exit_code_is_1(tmp_path, launcher):
    (tmp_path / "mine" / "norm").mkdir(parents=True)
    (tmp_path / "mine" / "breaks.py").write_text(
        "from stability.parts.placements import NoNorm\n"
        "class Breaks(NoNorm):\n"
        "    def __call__(self, x, f, norm):\n"
        "        if hasattr(x, 'backward'): raise RuntimeError('no such luck')\n"
        "        return x + f(x)\n"
    )
    yaml = "build: {_target_: breaks.Breaks}\n"
    (tmp_path / "mine" / "norm" / "broken.yaml").write_text(yaml)
    words = ["norm=broken,none", *TINY, "name=s", f"hydra/launcher={launcher}"]
    done = command("--config-dir", "mine", *words, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "RuntimeError: no such luck" in done.stdout and "run.log" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    found = {k.rpartition("_")[0]: r["status"] for k, r in runs(tmp_path / "outputs" / "s").items()}
    assert found == {"norm-broken": "failed", "norm-none": "completed"}
    log = next((tmp_path / "outputs" / "s").glob("norm-broken*/run.log")).read_text()
    assert "Traceback" in log and "no such luck" in log


def test_a_stopped_sweep_says_so_and_goes_on_later(tmp_path):
    words = ["seed=0,1,2", *TINY, "train.steps=100000", "name=s"]
    process = subprocess.Popen(
        [sys.executable, "-m", "stability.run", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len(runs(tmp_path / "outputs" / "s")) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert "interrupted" in said and "not started" in said and "Traceback" not in said
    assert "stopping: 2 runs write checkpoints" in said and "the same command again" in said
    assert {r["status"] for r in runs(tmp_path / "outputs" / "s").values()} == {"interrupted"}

    again = command(*words, "train.steps=3", cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "2 to continue" in again.stdout
    assert {r["status"] for r in runs(tmp_path / "outputs" / "s").values()} == {"completed"}


def test_two_commands_on_one_folder_share_the_work(tmp_path):
    words = ["seed=range(0,4)", *TINY, "train.steps=60", "name=s", "n_jobs=1"]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "stability.run", *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    found = runs(tmp_path / "outputs" / "s")
    assert len(found) == 4 and {r["status"] for r in found.values()} == {"completed"}
    logs = [p.read_text() for p in (tmp_path / "outputs" / "s").glob("*/run.log")]
    assert all(log.count("Traceback") == 0 for log in logs)


def test_bad_input_has_its_own_exit_code_and_leaves_nothing(tmp_path):
    done = command("norm=pre,post", "depth=2,0", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "depth=0: must be 1 to 10,000\n"
    assert list(tmp_path.iterdir()) == []
