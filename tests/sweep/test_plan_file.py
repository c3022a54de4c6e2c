"""A plan holds the checked runs of a sweep, and reading it gives them back or refuses it."""

import json

import pytest

from stability.config.knobs import ConfigError
from stability.parts import data
from stability.results.atomic import Unreadable
from stability.sweep import grid, plan_file
from tiny import make_config


@pytest.fixture
def cells(tmp_path):
    changes = [{"depth": 2}, {"depth": 4}, {"depth": 3}]
    configs = [make_config({"out": str(tmp_path), "name": "s", **c}) for c in changes]
    hashes = [data.source(config).sha256 for config in configs]
    made = grid.cells(configs, [[]] * 3, hashes, ["depth"])
    grid.make_folder(configs[0])
    return made


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_plan_gives_back_its_runs_the_dearest_first(cells, tmp_path):
    path = plan_file.write(cells, [])
    assert path == tmp_path / "s" / "plan.jsonl"
    read, trusted = plan_file.read(tmp_path / "s")
    assert [cell.label for cell in read] == ["depth-4", "depth-3", "depth-2"]
    assert trusted == []
    by_run = {cell.run: cell for cell in cells}
    for cell in read:
        written = by_run[cell.run]
        assert (cell.config, cell.identity) == (written.config, written.identity)
        assert (cell.folder, cell.overrides) == (written.folder, ())


def test_folders_of_the_user_are_read_back_in_full(cells, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    plan_file.write(cells, [(tmp_path / "mine").relative_to(tmp_path)])
    assert plan_file.read(tmp_path / "s")[1] == [tmp_path / "mine"]


def test_a_sweep_without_a_plan_says_how_to_make_one(tmp_path):
    with pytest.raises(Unreadable, match=r"has no plan\.jsonl \(stability\.run \.\.\. --plan\)"):
        plan_file.read(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "3\n", "[]\n", "{}\n", '{"config_dirs": 3}\n', '{"config_dirs": []}\n', "\xff"],
)
def test_a_damaged_plan_is_refused(tmp_path, text):
    (tmp_path / "plan.jsonl").write_text(text, encoding="latin-1")
    with pytest.raises(Unreadable, match=r"plan\.jsonl: is damaged"):
        plan_file.read(tmp_path)


@pytest.mark.parametrize("folder", ["../{run}", "/{run}", "depth-2_0badf00d"])
def test_a_plan_whose_folder_is_not_that_of_its_run_is_refused(cells, tmp_path, folder):
    path = plan_file.write(cells[:1], [])
    (line,) = lines_of(path)
    path.write_text(json.dumps(line | {"folder": folder.format(run=line["run"])}) + "\n")
    with pytest.raises(Unreadable, match="is damaged"):
        plan_file.read(tmp_path / "s")


def test_a_run_that_is_another_one_here_is_refused(cells, tmp_path, monkeypatch):
    path = plan_file.write(cells[:1], [])
    (line,) = lines_of(path)
    path.write_text(json.dumps(line | {"config": line["config"] | {"seed": 7}}) + "\n")
    with pytest.raises(ConfigError, match=f"run={line['run']}: is another one here"):
        plan_file.read(tmp_path / "s")
