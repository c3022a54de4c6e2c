"""Whatever lies in conf/ and experiments/ is complete: a yaml there is found and tested."""

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from stability.config import instantiate
from stability.config.knobs import Config, Option

ROOT = Path(__file__).parents[2]
BUILT = [f.name for f in fields(Config) if isinstance(f.type, type) and issubclass(f.type, Option)]
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
    assert set(read(path)) == {"depth", "model"}


def page(path: Path) -> Path:
    """The page of an experiment; the same question on another model shares its page."""
    stem = path.stem
    for another in ("_gpu", "_linear_branch", "_plain"):
        stem = stem.removesuffix(another)
    return path.with_name(stem + ".md")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=name)
def test_every_experiment_names_itself_and_has_its_page(path):
    assert read(path)["name"] == path.stem
    assert page(path).read_text().startswith("# ")


def test_every_page_has_its_experiment():
    pages = set((ROOT / "experiments").glob("*.md")) - {ROOT / "experiments" / "README.md"}
    assert pages == {page(p) for p in EXPERIMENTS}
