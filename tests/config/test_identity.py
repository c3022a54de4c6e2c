"""Two runs are one where nothing differs but names, places and what is shown."""

import copy
from typing import Any

import pytest

from stability.config.identity import digest, flatten, identity
from stability.config.knobs import Config, lookup
from tiny import composed


def hash_of(plain: dict[str, Any], sha256: str = "sha") -> str:
    return digest(identity(Config.from_plain(plain), sha256))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("out", "elsewhere"),
        ("name", "other"),
        ("device", "cpu"),
        ("n_jobs", 2),
        ("isolate", True),
        ("norm.label", "Another"),
        ("norm.order", 99),
        ("claim", {"criterion": 1}),
        ("train.steps", 7),
        ("train.keep_checkpoint", True),
        ("record.flush_every", 3),
        ("data.path", "moved.bin"),
    ],
)
def test_what_only_names_places_or_shows_a_run_is_not_part_of_it(key, value):
    one, other = composed(data="text"), composed({key: value}, data="text")
    assert hash_of(one) == hash_of(other)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("depth", 7),
        ("dtype", "bf16"),
        ("seed", 1),
        ("threads", 2),
        ("train.lr", 2e-3),
        ("record.every", 5),
        ("init.embed_std", 0.03),
        ("norm_type.eps", 1e-6),
        ("model.vocab", 300),
        ("compile", True),
    ],
)
def test_what_changes_the_numbers_or_the_rows_makes_another_run(key, value):
    one, other = composed(), composed({key: value})
    assert hash_of(one) != hash_of(other)


def test_the_identity_names_the_classes_of_the_package_without_their_modules():
    config = Config.from_plain(composed(data="text"))
    found = identity(config, "sha")
    assert found["norm.build"] == {"_target_": "Pre"}
    assert found["data.build"] == {"_target_": "Text"}
    assert (found["data_sha256"], found["choices"]["norm"], found["depth"]) == ("sha", "pre", 6)
    config.norm.build["_target_"] = "stabilized.placements.Pre"
    assert identity(config, "sha")["norm.build"] == {"_target_": "stabilized.placements.Pre"}


def test_the_arguments_of_a_class_are_part_of_the_run():
    build = identity(Config.from_plain(composed({"init.std": 0.5}, init="normal")), "sha")
    assert build["init.build"] == {"_target_": "Normal", "std": 0.5}


def test_data_count_by_their_content():
    assert hash_of(composed(), "a") != hash_of(composed(), "b")


def test_an_option_is_part_of_the_run():
    assert hash_of(composed(), "a") != hash_of(composed(norm="post"), "a")


def test_the_digest_is_canonical():
    assert digest({"a": 1, "b": {"c": 2, "d": [3]}}) == digest(
        {"b": {"d": [3.0], "c": 2.0}, "a": 1}
    )
    assert digest({"lr": 1e-3}) == digest({"lr": 0.001})
    assert digest({"flag": True}) != digest({"flag": 1})
    assert len(digest({})) == 8


def test_the_digest_does_not_change_between_releases():
    """Folders on disk carry it: a change here orphans everyone's results."""
    assert digest({"depth": 6, "norm": "pre"}) == "4dff112a"
    assert digest({"b": [2.0, 0.5, True, None], "a": {"c": 3.0}}) == "e09ea179"


def test_flatten_gives_one_scalar_a_column():
    row = flatten(composed({"claim": {"criterion": 1}}))
    assert row["norm"] == "pre"
    assert row["norm.label"] == "Pre-LN"
    assert row["optimizer.betas"] == "[0.9, 0.95]"
    assert row["norm.build._target_"] == "stability.parts.placements.Pre"
    assert (row["depth"], row["train.lr"], row["init.label"]) == (6, 1e-3, "Xavier")
    assert not any(key.startswith(("claim", "choices")) for key in row)
    assert all(v is None or isinstance(v, str | int | float | bool) for v in row.values())


def test_nothing_here_changes_the_config_it_is_given():
    config = composed()
    before = copy.deepcopy(config)
    hash_of(config), flatten(config)
    assert config == before
    assert lookup(config, "train.lr") == 1e-3
