"""From a command line to its sweep: what is shown, what is checked, and what is written when."""

import json

import pytest
import yaml

from stability.cli import flags, launch
from stability.config.knobs import Config, ConfigError
from stability.sweep import plan_file, pool, summary, worker_process

TINY = ["depth=2", "model.width=16", "model.heads=2", "model.context=8", "train.steps=2"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def checked(monkeypatch):
    """How many runs each check was given; checks find nothing."""
    counts = []

    def check(cells, config_dirs):
        counts.append(len(cells))
        return 0

    monkeypatch.setattr(worker_process, "check_and_count_gpus", check)
    return counts


def command(*words):
    return launch.launch(flags.parse([*TINY, *words]))


def finish(sweep):
    """Mark every planned run as completed."""
    for cell in plan_file.read(sweep)[0]:
        cell.folder.mkdir()
        info = {"status": "completed", "steps_done": cell.config.train.steps}
        (cell.folder / "run.json").write_text(json.dumps(info | {"identity": cell.identity}))


def test_the_config_that_is_shown_composes_the_same_run_and_writes_nothing(tmp_path, capsys):
    assert command("--cfg", "job", "seed=3", "norm=post") == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    config = Config.from_plain(shown)
    assert (config.seed, config.depth, config.choices["norm"]) == (3, 2, "post")
    assert list(shown) == list(Config().plain())  # in the order of the knobs
    assert list(tmp_path.iterdir()) == []


def test_a_plan_is_written_once_its_runs_are_checked(tmp_path, checked, capsys):
    assert command("--plan", "name=s", "seed=0,1,2") == 0
    assert checked == [3]
    sweep = tmp_path / "outputs" / "s"
    assert [path.name for path in sweep.iterdir()] == ["plan.jsonl"]
    assert len((sweep / "plan.jsonl").read_text().splitlines()) == 3
    assert "3 runs, 0 done already" in capsys.readouterr().out
    finish(sweep)
    assert command("--plan", "name=s", "seed=0,1,2,3") == 0
    assert checked == [3, 1]
    assert "4 runs, 3 done already" in capsys.readouterr().out


def test_a_plan_whose_runs_are_done_needs_no_check(tmp_path, checked, capsys):
    command("--plan", "name=s", "seed=0,1")
    finish(tmp_path / "outputs" / "s")
    assert command("--plan", "name=s", "seed=0,1") == 0
    assert checked == [2]
    assert "2 runs, 2 done already" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["shard=1/2", "name=s"], r"shard=1/2: has no effect: --plan"),
        (["hydra/launcher=basic", "name=s"], r"--plan.* has no launcher"),
    ],
)
def test_a_plan_is_of_the_whole_sweep_and_starts_nothing(tmp_path, checked, words, refused):
    with pytest.raises(ConfigError, match=refused):
        command("--plan", "seed=0,1", *words)
    assert checked == [] and list(tmp_path.iterdir()) == []


def test_a_shard_needs_a_name(tmp_path, checked):
    with pytest.raises(ConfigError, match=r"shard=1/2: needs name=NAME"):
        command("seed=0,1", "shard=1/2")
    assert checked == [] and list(tmp_path.iterdir()) == []


def test_what_cannot_be_built_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    def refuse(cells, config_dirs):
        raise ConfigError("device", "cuda:9", "there is none")

    monkeypatch.setattr(worker_process, "check_and_count_gpus", refuse)
    for words in ((), ("--plan",)):
        with pytest.raises(ConfigError, match="there is none"):
            command("name=s", *words)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_that_is_done_starts_no_process(tmp_path, checked, capsys):
    command("--plan", "name=s", "seed=0,1")
    finish(tmp_path / "outputs" / "s")
    cells = plan_file.read(tmp_path / "outputs" / "s")[0]
    summed_up = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pool, "Pool", None)  # calling it is an error
        patched.setattr(summary, "conclude", lambda *args: summed_up.append(args) or 0)
        assert command("name=s", "seed=0,1") == 0
    assert checked == [2]
    (given, ends, named, stopped, _) = summed_up[0]
    assert [cell.run for cell in given] == [cell.run for cell in cells]
    assert (ends, named, stopped) == ({}, True, None)
    assert "2 runs, 2 done already" in " ".join(capsys.readouterr().out.split())
