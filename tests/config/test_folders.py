"""Whatever lies in conf/ and experiments/ is complete: a yaml there is found and tested."""

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from stability.config import folders, instantiate
from stability.config.knobs import Config, OptionConfig

ROOT = Path(__file__).parents[2]
BUILT = [
    f.name for f in fields(Config) if isinstance(f.type, type) and issubclass(f.type, OptionConfig)
]
OPTIONS = [p for group in BUILT for p in sorted((ROOT / "conf" / group).glob("*.yaml"))]
MODELS = sorted((ROOT / "conf" / "model").glob("*.yaml"))
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))


def name(path: Path) -> str:
    return f"{path.parent.name}={path.stem}"


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", OPTIONS, ids=name)
def test_every_option_has_a_label_an_order_and_a_class_that_may_be_built(path):
    option = read(path)
    assert isinstance(option["label"], str)
    assert option["label"]
    assert isinstance(option["order"], int)
    assert instantiate.resolve(option["build"]["_target_"], f"{path.parent.name}.build")


@pytest.mark.parametrize("group", BUILT)
def test_labels_and_orders_are_unique_in_a_group(group):
    options = [read(p) for p in OPTIONS if p.parent.name == group]
    assert options
    for key in ("label", "order"):
        values = [o[key] for o in options]
        assert sorted(values) == sorted(set(values)), key


@pytest.mark.parametrize("path", MODELS, ids=name)
def test_a_model_sets_a_depth_and_a_shape_and_says_what_it_is_for(path):
    text = path.read_text()
    assert text.startswith("# @package _global_\n# ")
    assert {"depth", "model"} <= set(read(path)) <= {"defaults", "depth", "model"}


def page(path: Path) -> Path:
    """The page of an experiment; the same question on another model shares its page."""
    stem = path.stem
    for another in ("_gpu", "_linear_branch", "_math", "_plain", "_few_samples", "_text"):
        stem = stem.removesuffix(another)
    return path.with_name(stem + ".md")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=name)
def test_every_experiment_names_itself_and_has_its_page(path):
    assert read(path)["name"] == path.stem
    assert page(path).read_text().startswith("# ")


def test_every_page_has_its_experiment():
    pages = set((ROOT / "experiments").glob("*.md")) - {ROOT / "experiments" / "README.md"}
    assert pages == {page(p) for p in EXPERIMENTS}


def test_the_folders_of_a_checkout_lie_beside_its_sources():
    assert folders.conf_dir() == ROOT / "conf"
    assert folders.experiments_dir() == ROOT / "experiments"


def test_the_folders_of_a_wheel_lie_inside_the_package(tmp_path, monkeypatch):
    (tmp_path / "_conf").mkdir()
    monkeypatch.setattr(folders, "_PACKAGE", tmp_path)
    assert folders.conf_dir() == tmp_path / "_conf"


def test_options_are_those_of_the_package_and_of_the_user_by_name(tmp_path):
    (tmp_path / "norm").mkdir()
    for name in ("mine.yaml", "pre.yaml", "notes.txt"):
        (tmp_path / "norm" / name).write_text("")
    shipped = [p.stem for p in OPTIONS if p.parent.name == "norm"]
    assert folders.options("norm") == shipped
    assert folders.options("norm", [tmp_path]) == sorted([*shipped, "mine"])


def test_each_group_has_a_default_that_is_one_of_its_options():
    found = folders.defaults()
    assert all(found[group] in folders.options(group) for group in (*BUILT, "model"))
    assert found["norm"] == "pre" and "experiments" not in found


def test_an_experiment_of_the_user_hides_one_of_the_same_name(tmp_path):
    (tmp_path / "experiments").mkdir()
    own = tmp_path / "experiments" / f"{EXPERIMENTS[0].stem}.yaml"
    own.write_text("")
    found = folders.experiments([tmp_path])
    assert found == folders.experiments() | {own.stem: own}
    assert sorted(folders.experiments().values()) == EXPERIMENTS
