"""The sweeper: what a command line becomes, and what a sweep's folder holds already."""

import json
import re

import pytest
import yaml
from omegaconf import OmegaConf

from planning import composing, names, planned, write
from stability.cli.refusal_text import REFUSALS
from stability.config import folders
from stability.config.knobs import GROUPS, KNOBS, ConfigError
from stability.sweep import grid, resume, worker


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def experiments(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "experiments_dir", lambda: tmp_path / "kept")
    return lambda name, text: write(tmp_path / "kept" / f"{name}.yaml", text)


def leave(cell, **state):
    """What an earlier command left of a run."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    info = {"status": "completed", "steps_done": cell.config.train.steps, "error": None}
    (cell.folder / "run.json").write_text(json.dumps(info | {"identity": cell.identity} | state))
    (cell.folder / "config.yaml").write_text(yaml.safe_dump(cell.config.plain()))


def test_a_grid_is_every_combination_with_the_first_key_slowest():
    assert names(planned("norm=pre,post", "depth=2,3")) == [
        "norm-pre_depth-2",
        "norm-pre_depth-3",
        "norm-post_depth-2",
        "norm-post_depth-3",
    ]


def test_one_run_is_a_sweep_of_one():
    (cell,) = planned()
    assert cell.label == "" and cell.folder.name == cell.run
    assert cell.config.choices == {
        "norm": "pre",
        "norm_type": "layernorm",
        "init": "xavier",
        "activation": "gelu",
        "optimizer": "adamw",
        "model": "nano",
        "data": "pydocs",
    }


def test_no_experiment_and_any_option_can_be_asked_for():
    assert [c.config for c in planned("experiments=null", "name=s")] == [
        c.config for c in planned("name=s")
    ]
    assert names(planned("norm=glob(p*,exclude=plain)")) == ["norm-peri", "norm-post", "norm-pre"]
    assert len(planned("norm='pre',\"post\"", "optimizer.betas=[0,0.5]")) == 2


def test_folder_names_are_short_unique_and_legal_everywhere():
    cells = planned(
        "optimizer.betas=[0.9,0.95],[0.8,0.9]",
        "record.kinds=[act,grad,weight],[act]",
        "norm=pre,post",
        "norm_type=layernorm,rmsnorm",
        "train.lr=1e-3,1e-5",
        "optimizer.eps=1e-8,1e-9",
        "norm_type.eps=1e-5,1e-6",
        "name=long",
    )
    folders = [cell.folder.name for cell in cells]
    assert len(cells) == 2**7 == len(set(folders))
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,100}", folder) for folder in folders)
    assert not any(folder.startswith((".", "-")) for folder in folders)
    assert all(folder.endswith(cell.run) for folder, cell in zip(folders, cells, strict=True))


def test_keys_that_end_alike_keep_their_whole_name():
    (first, *_) = planned(
        "optimizer.eps=1e-8,1e-9", "norm_type.eps=1e-5,1e-6", "train.lr=1e-3,1e-2"
    )
    assert first.label == "optimizer.eps-1e-08_norm_type.eps-1e-05_lr-0.001"


def test_equal_values_written_differently_are_one_run():
    assert len(planned("train.lr=1e-3,0.001")) == 1
    assert names(planned("train.lr=1e-3,0.001,1e-2")) == ["lr-0.001", "lr-0.01"]


def test_the_name_that_nobody_gave_is_a_time_stamp_of_its_own():
    stamps = {planned(*words)[0].config.name for words in ((), (), ("name=null",))}
    assert len(stamps) == 3
    assert all(KNOBS["name"].legal.test(stamp) for stamp in stamps)


def test_the_run_hash_does_not_depend_on_what_only_names_or_places_it():
    assert (
        planned("name=a")[0].run == planned("name=b", "out=c", "n_jobs=2", "train.steps=7")[0].run
    )
    assert planned("seed=1")[0].run != planned("seed=2")[0].run


def test_planning_writes_nothing(tmp_path):
    planned("norm=pre,post")
    assert list(tmp_path.iterdir()) == []


# -- experiments ---------------------------------------------------------------------------------


def test_an_experiment_brings_its_grid_and_the_command_line_replaces_it(experiments):
    experiments(
        "q", "name: q\ndepth: 3\nhydra: {sweeper: {params: {norm: 'pre,post', seed: [0, 1]}}}\n"
    )
    cells = planned("experiments=q")
    assert names(cells) == [f"norm-{n}_seed-{s}" for n in ("pre", "post") for s in (0, 1)]
    assert {c.config.depth for c in cells} == {3}
    assert {c.folder.parent.name for c in cells} == {"q"}
    assert names(planned("experiments=q", "norm=none")) == ["seed-0", "seed-1"]
    assert names(planned("experiments=q", "seed=7,8,9", "norm=pre")) == [
        "seed-7",
        "seed-8",
        "seed-9",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "hydra: {launcher: {n_jobs: 3}}",
        "hydra: {mode: RUN}",
        "hydra: {sweeper: {_target_: os.system}}",
        "hydra: {callbacks: {x: {_target_: os.system}}}",
        "defaults: [{override hydra/launcher: basic}]",
        "nrom: post",
        "hydra: {sweeper: {params: {nrom: 'pre,post'}}}",
        "hydra: {sweeper: {params: {train.steps: '1,2'}}}",
        "hydra: {sweeper: {params: {norm: [1, 2]}}}",
        "hydra: {sweeper: {params: {norm: 'pre,'}}}",
        "train: {lrr: 1}",
        "defaults: [{override /nrom: post}]",
        "- a list",
        "depth: [1",
        "init: {std: 0.5}",
    ],
)
def test_an_experiment_that_sets_what_it_must_not_is_refused(experiments, text):
    experiments("q", text)
    with pytest.raises(REFUSALS):
        planned("experiments=q")


def test_an_experiment_in_the_users_folder_is_found(tmp_path):
    write(tmp_path / "mine" / "experiments" / "own.yaml", "# @package _global_\ndepth: 4\n")
    (cell,) = planned("--config-dir", str(tmp_path / "mine"), "experiments=own")
    assert cell.config.depth == 4


def test_a_placement_in_the_users_folder_is_built(tmp_path):
    write(
        tmp_path / "mine" / "my_placement.py",
        "from stability.parts.placements import Placement\n"
        "class Half(Placement):\n"
        "    def __init__(self, depth, layer, sublayer, factor):\n"
        "        super().__init__(depth, layer, sublayer)\n"
        "    def __call__(self, x, f, norm):\n"
        "        return 0.5 * x + f(norm(x))\n",
    )
    yaml_text = "label: half\nbuild: {_target_: my_placement.Half, factor: 2}\n"
    write(tmp_path / "mine" / "norm" / "half.yaml", yaml_text)
    cells = planned("--config-dir", str(tmp_path / "mine"), "norm=half,pre")
    assert names(cells) == ["norm-half", "norm-pre"]
    worker.check([cell.config for cell in cells])
    varied = planned("--config-dir", str(tmp_path / "mine"), "norm=half", "norm.build.factor=1,2")
    assert names(varied) == ["factor-1", "factor-2"]


# -- resuming ------------------------------------------------------------------------------------


def test_only_what_is_missing_runs_again():
    cells = planned("seed=0,1,2,3,4,5", "name=s", "train.steps=5")
    leave(cells[0])
    leave(cells[1], status="diverged", steps_done=2)
    leave(cells[2], status="failed", steps_done=2)
    leave(cells[3], status="interrupted", steps_done=2)
    leave(cells[4], status="running", steps_done=2)
    assert grid.waiting(cells) == cells[2:]


def test_more_steps_continue_a_completed_run_and_fewer_do_not():
    (cell,) = planned("name=s", "train.steps=5")
    leave(cell)
    assert grid.waiting(planned("name=s", "train.steps=9")) != []
    assert grid.waiting(planned("name=s", "train.steps=3")) == []


def test_more_steps_are_refused_where_the_schedule_depends_on_them():
    (cell,) = planned("name=s", "train.steps=5", "train.schedule=cosine")
    leave(cell, status="interrupted", steps_done=2)
    assert grid.waiting(planned("name=s", "train.steps=5", "train.schedule=cosine"))
    with pytest.raises(ConfigError, match=r"train\.steps=9: .* ran with 5"):
        planned("name=s", "train.steps=9", "train.schedule=cosine")


def test_a_run_is_found_again_under_another_label():
    (one,) = planned("name=s", "depth=3")
    leave(one)
    cells = planned("name=s", "depth=2,3")
    assert cells[1].folder == one.folder
    assert grid.waiting(cells) == cells[:1]


def test_a_folder_of_another_config_is_refused_with_the_difference():
    for cell in planned("name=s", "norm=pre,post"):
        leave(cell)
    with pytest.raises(ConfigError, match=r"train\.lr is 0\.001 there, 0\.01 here"):
        planned("name=s", "norm=pre,post", "train.lr=1e-2")
    assert len(planned("name=s", "norm=pre,post,none")) == 3


@pytest.mark.parametrize("name", ["", "layers.parts", "batch0.npz", ".steps.parquet.7"])
def test_a_folder_that_leads_out_of_the_sweep_is_refused(name, tmp_path):
    (cell,) = planned("name=s")
    (tmp_path / "victim").mkdir()
    link = cell.folder / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match=r"name=s: .* is a symbolic link"):
        planned("name=s")


def test_a_hash_that_lies_is_refused():
    (cell,) = planned("name=s")
    leave(cell, identity=cell.identity | {"depth": 99})
    with pytest.raises(ConfigError, match="depth is 99 there, 6 here"):
        planned("name=s")


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"status": 3}', "\0"])
def test_a_damaged_run_json_means_that_the_run_starts_again(damage):
    (cell,) = planned("name=s")
    leave(cell)
    (cell.folder / "run.json").write_text(damage)
    assert grid.waiting(planned("name=s")) != []


@pytest.mark.parametrize("state", [{"steps_done": None}, {"steps_done": "9"}, {"identity": []}])
def test_a_run_json_with_values_of_other_kinds_does_so_too(state):
    (cell,) = planned("name=s")
    leave(cell, **state)
    assert grid.waiting(planned("name=s")) != []


@pytest.mark.parametrize("config", ["a: 1", "[", "[]", "\0", None])
def test_a_damaged_config_says_nothing_of_a_schedule(config):
    words = ["name=s", "train.steps=5", "train.schedule=cosine"]
    (cell,) = planned(*words)
    leave(cell, status="interrupted", steps_done=2)
    path = cell.folder / "config.yaml"
    path.write_text(config) if config else path.unlink()
    assert grid.waiting(planned(*words)) != []


def test_shards_are_disjoint_and_complete():
    everything = [c.run for c in planned("seed=range(0,7)", "name=s")]
    parts = [
        [c.run for c in grid.waiting(planned("seed=range(0,7)", "name=s", f"shard={i}/3"))]
        for i in (1, 2, 3)
    ]
    assert sorted(run for part in parts for run in part) == sorted(everything)
    assert parts[0] == everything[::3]


def test_two_runs_with_one_hash_are_refused_with_the_difference(monkeypatch):
    monkeypatch.setattr(grid, "digest", lambda identity: "0badf00d")
    with pytest.raises(
        ConfigError, match=r"hash 0badf00d of another run: depth is 2 there, 3 here"
    ):
        planned("depth=2,3", "name=s")
    assert len(planned("train.lr=1e-3,0.001", "name=s")) == 1


def test_a_hash_of_eight_digits_that_two_runs_share_on_disk_is_refused(monkeypatch):
    monkeypatch.setattr(grid, "digest", lambda identity: "0badf00d")
    leave(planned("depth=2", "name=s")[0])
    with pytest.raises(ConfigError, match="holds another run: depth is 2 there, 3 here"):
        planned("depth=3", "name=s")


def test_a_settled_run_says_what_killed_it(tmp_path):
    (cell,) = planned("name=s")
    leave(cell, status="running", outcome="running", finished=None)
    resume.mark_ended(cell.folder, "failed", "its process was killed (SIGKILL)", 10)
    info = resume.read(cell.folder)
    assert info["status"] == "failed" and "SIGKILL" in info["error"] and info["finished"]
    resume.mark_ended(cell.folder, "failed", "again", 10)
    assert resume.read(cell.folder) == info


def test_setting_values_in_a_copy_gives_what_hydra_composes_in_full():
    words = [
        "norm=post",
        "train.lr=3e-4",
        "+norm.build.x=[1,{a: b}]",
        "model.width=${depth}",
        "depth=8",
        "name=s",
    ]
    with composing(*words) as (request, composer):
        fast = composer.compose([setting.values[0] for setting in request.settings.values()])
        full = composer.with_hydra(words)
        choices = dict(full.hydra.runtime.choices)
        plain = OmegaConf.to_container(OmegaConf.masked_copy(full, [*fast][:-1]), resolve=True)
        assert fast == plain | {"choices": {group: choices[group] for group in GROUPS}}
        assert fast["model"]["width"] == 8 and fast["norm"]["label"] == "Post-LN"
