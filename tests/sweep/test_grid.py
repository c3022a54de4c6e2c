"""Configs become runs: their names, their folders, and what a sweep's folder holds already."""

import json

import pytest

from stability.config.knobs import ConfigError
from stability.sweep import grid
from stability.sweep.resume import MAX_DIFFERENCES, differences
from tiny import make_config


def cells(tmp_path, changes, swept):
    configs = [make_config({"out": str(tmp_path), "name": "s", **c}) for c in changes]
    words = [[f"{key}={value}" for key, value in c.items()] for c in changes]
    return grid.cells(configs, words, ["0" * 64] * len(configs), swept)


def test_a_run_is_named_by_what_varies_and_its_hash(tmp_path):
    one, two = cells(
        tmp_path, [{"seed": 0, "depth": 2}, {"seed": 1, "depth": 2}], ["seed", "depth"]
    )
    assert (one.label, two.label) == ("seed-0", "seed-1")
    assert one.folder == tmp_path / "s" / f"seed-0_{one.run}"
    assert one.title == "seed-0" and one.overrides == ("seed=0", "depth=2")


def test_a_single_run_is_named_by_its_hash_alone(tmp_path):
    (cell,) = cells(tmp_path, [{"seed": 3}], [])
    assert cell.label == "" and cell.title == cell.run
    assert cell.folder == tmp_path / "s" / cell.run


def test_configs_with_one_identity_are_one_run(tmp_path):
    found = cells(tmp_path, [{"seed": 0}, {"seed": 0}, {"seed": 1}], ["seed"])
    assert [cell.label for cell in found] == ["seed-0", "seed-1"]


def test_two_keys_that_end_alike_are_named_in_full(tmp_path):
    changes = [
        {"norm_type.eps": 1e-5, "optimizer.eps": 1e-8},
        {"norm_type.eps": 1e-6, "optimizer.eps": 1e-7},
    ]
    one, _ = cells(tmp_path, changes, ["norm_type.eps", "optimizer.eps"])
    assert one.label == "norm_type.eps-1e-05_optimizer.eps-1e-08"


def test_characters_that_a_file_name_lacks_become_a_dash(tmp_path):
    changes = [{"record.kinds": ["act"]}, {"record.kinds": ["act", "grad"]}]
    _, two = cells(tmp_path, changes, ["record.kinds"])
    assert two.label == "kinds-act-grad"


def test_a_long_name_is_cut_and_keeps_its_hash(tmp_path):
    changes = [{"data.path": "x" * 300, "seed": s} for s in (0, 1)]
    found = cells(
        tmp_path,
        [{**c, "data.path": c["data.path"] + str(c["seed"])} for c in changes],
        ["data.path", "seed"],
    )
    for cell in found:
        assert len(cell.folder.name) <= grid.MAX_NAME_LENGTH
        assert cell.folder.name.endswith(f"_{cell.run}")


def test_differences_are_named_with_both_values_and_the_rest_counted():
    there, here = dict.fromkeys("abcdefghij", 0), dict.fromkeys("abcdefghij", 1)
    text = differences(there, here)
    shown = text.count(" is 0 there, 1 here")
    assert text.startswith("a is 0 there, 1 here; ") and text.endswith(f" and {10 - shown} more")
    assert 0 < shown < 10
    assert differences({"a": 1}, {"b": 1}) == "a is 1 there, (none) here; b is (none) there, 1 here"
    assert differences(there, there) == ""


def test_a_folder_that_cannot_be_made_is_refused_by_its_key(tmp_path):
    (tmp_path / "file").write_text("")
    config = make_config({"out": str(tmp_path / "file"), "name": "s"})
    with pytest.raises(ConfigError, match=r"out=.*: cannot be written to"):
        grid.make_folder(config)


def test_a_part_of_a_sweep_holds_the_runs_of_its_shard(tmp_path):
    changes = [{"seed": s, "shard": "1/2"} for s in range(5)]
    mine = grid.waiting(cells(tmp_path, changes, ["seed"]))
    others = grid.waiting(cells(tmp_path, [{**c, "shard": "2/2"} for c in changes], ["seed"]))
    labels = [cell.label for cell in (*mine, *others)]
    assert sorted(labels) == [f"seed-{s}" for s in range(5)]
    assert abs(len(mine) - len(others)) == 1


def test_as_many_differences_as_are_named_leave_none_to_count():
    keys = [str(i) for i in range(MAX_DIFFERENCES + 1)]
    for count, end in ((MAX_DIFFERENCES, "here"), (MAX_DIFFERENCES + 1, " and 1 more")):
        text = differences(dict.fromkeys(keys[:count], 0), dict.fromkeys(keys[:count], 1))
        assert text.endswith(end) and text.count("there") == MAX_DIFFERENCES


def leave(cell, folder, identity):
    """A run of this identity on disk, in this folder of the cell's sweep."""
    path = cell.folder.with_name(folder)
    path.mkdir(parents=True)
    info = {"status": "completed", "steps_done": 3, "identity": identity}
    (path / "run.json").write_text(json.dumps(info))
    return path


def test_a_run_keeps_the_folder_that_it_has_whatever_its_label_there(tmp_path):
    one, two = cells(tmp_path, [{"seed": 0}, {"seed": 1}], ["seed"])
    path = leave(one, f"depth-2_{one.run}", json.loads(json.dumps(one.identity)))
    placed = grid.place([one, two])
    assert [cell.folder for cell in placed] == [path, two.folder]


@pytest.mark.parametrize("folder", ["seed-0_{run}", "other_{run}", "seed-0_0badf00d"])
def test_another_run_under_a_cells_hash_or_label_is_refused(tmp_path, folder):
    one, two = cells(tmp_path, [{"seed": 0}, {"seed": 1}], ["seed"])
    there = json.loads(json.dumps(one.identity)) | {"depth": 99}
    leave(one, folder.format(run=one.run), there)
    with pytest.raises(
        ConfigError, match="holds another run: depth is 99 there, 2 here; give another name"
    ):
        grid.place([two, one])


def test_another_run_under_another_label_is_no_concern(tmp_path):
    one, two = cells(tmp_path, [{"seed": 0}, {"seed": 1}], ["seed"])
    leave(one, "seed-7_0badf00d", {"depth": 99})
    assert grid.place([one, two]) == [one, two]


def test_a_run_that_is_cut_into_a_label_does_not_end_in_a_dash(tmp_path):
    room = grid.MAX_NAME_LENGTH - 9 - len("path-")
    changes = [{"data.path": "x" * (room - 1) + "-" + c} for c in "ab"]
    with_dash, _ = cells(tmp_path, [{**c, "seed": i} for i, c in enumerate(changes)], ["data.path"])
    assert with_dash.label == "path-" + "x" * (room - 1)
    full = [{"data.path": "x" * room + c, "seed": i} for i, c in enumerate("ab")]
    cut, _ = cells(tmp_path, full, ["data.path"])
    assert len(cut.folder.name) == grid.MAX_NAME_LENGTH


def test_two_sweeps_without_a_name_get_different_ones():
    assert len({grid.time_stamp() for _ in range(20)}) == 20
