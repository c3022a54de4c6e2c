"""Which keys of two sides differ."""

import json

import pytest

from stability.difference.config_keys import differing_keys
from stability.difference.pairing import read_sides
from synthetic import write_run


def keys_of(a, b):
    found = differing_keys(*read_sides(a, b))
    return {key: (x, y) for key, x, y in found.itertuples(index=False)}


@pytest.fixture
def sides(tmp_path):
    write_run(tmp_path / "a", {"norm": "pre", "depth": 6, "seed": 0}, steps=1)
    for depth in (24, 6, 96):
        write_run(tmp_path / "b", {"norm": "post", "depth": depth, "seed": 0}, steps=1)
    return tmp_path / "a", tmp_path / "b"


def test_only_keys_that_differ_are_listed_and_values_are_sorted_by_size(sides):
    found = keys_of(*sides)
    assert found["norm"] == ("pre", "post")
    assert found["depth"] == ("6", "6, 24, 96")
    assert not {"seed", "dtype", "init", "train.lr", "norm.label", "norm.order"} & set(found)
    assert not {key for key in found if key.endswith("_target_")}


def test_a_side_beside_itself_differs_in_nothing(sides):
    assert keys_of(sides[0], sides[0]) == {}


def test_a_key_that_one_side_lacks_is_absent_there(sides):
    (folder,) = sides[0].iterdir()
    with (folder / "config.yaml").open("a") as file:
        file.write("extra: 3\n")
    assert keys_of(*sides)["extra"] == ("3", "absent")


def test_software_and_the_device_that_was_used_are_compared_too(sides):
    (folder,) = sides[0].iterdir()
    state = json.loads((folder / "run.json").read_text())
    changed = {"versions": state["versions"] | {"torch": "9.9"}, "device": "another"}
    (folder / "run.json").write_text(json.dumps(state | changed))
    found = keys_of(*sides)
    assert found["versions.torch"] == ("9.9", state["versions"]["torch"])
    assert found["run.device"] == ("another", str(state["device"]))
    assert "device" not in found and "versions.numpy" not in found
