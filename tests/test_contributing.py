"""The examples of CONTRIBUTING.md work as they stand: outside the package, or in a copy of it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate

from stability.config import instantiate
from stability.config.names import Key
from stability.model.build import update_rule_of
from stability.model.optim import Optimizer
from stability.parts.placements import equation
from stability.theory.run_theory import theory_of_run
from tiny import make_config

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PARTS = {  # section -> group, option and class of its example
    "A placement": ("norm", "sandwich", "Sandwich"),
    "A norm": ("norm_type", "dyt", "DyT"),
    "An init": ("init", "small", "Small"),
    "An activation": ("activation", "squared_relu", "SquaredReLU"),
    "An optimizer": ("optimizer", "momentum", "Momentum"),
    "A data source": ("data", "repeats", "Repeats"),
}
TINY = (
    *("model.width=128", "model.context=16", "train.steps=3", "record.every=1"),
    *("depth=2", "train.eval_every=0", "train.eval_batches=1", "train.batch_size=8", "device=cpu"),
)


def section(name: str) -> str:
    found = TEXT.split(f"\n## {name}\n")
    assert len(found) == 2, name
    return found[1].partition("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    """The code of a language, without the indent of the list that it stands in."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.M | re.S)
    return [re.sub(rf"^{indent}", "", code, flags=re.M) for indent, code in found]


def edits(name: str) -> list[str]:
    """What the numbered steps of a section begin with."""
    return re.findall(r"^\d\. (.*)", section(name), re.M)


def run(words: tuple[str, ...], folder: Path, path: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(path)}
    command = [sys.executable, "-m", "stability.run", *words, *TINY, "n_jobs=1"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.fixture(scope="module")
def my_parts(tmp_path_factory) -> Iterator[Path]:
    """A folder outside the package with the class and the yaml of every example."""
    folder = tmp_path_factory.mktemp("outside") / "my_parts"
    for name, (group, option, _) in PARTS.items():
        (code,), (node,) = blocks(section(name), "python"), blocks(section(name), "yaml")
        module = f"example_{group}"
        (folder / group).mkdir(parents=True)
        (folder / f"{module}.py").write_text(code)
        node = re.sub(r"stability\.parts\.\w+\.", f"{module}.", node)
        (folder / group / f"{option}.yaml").write_text(node)
    (halved,) = blocks(TEXT.partition("\n## ")[0], "python")
    (folder / "parts.py").write_text(halved)
    (node,) = blocks(TEXT.partition("\n## ")[0], "yaml")
    (folder / "norm" / "halved.yaml").write_text(node)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instantiate, "_allowed", {"stability"})
        patch.setattr(sys, "path", list(sys.path))
        instantiate.trust(folder)
        yield folder
    for name in [name for name in sys.modules if name.startswith("example_")]:
        del sys.modules[name]


def example(my_parts: Path, name: str, *args: object) -> object:
    group, _, cls = PARTS[name]
    return instantiate.resolve(f"example_{group}.{cls}", group)(*args)


@pytest.fixture(scope="module")
def swept(my_parts) -> Path:
    """Two runs that are made of all examples at once."""
    chosen = tuple(f"{group}={option}" for group, option, _ in PARTS.values())
    words = ("--config-dir", "my_parts", *chosen, "optimizer.build.beta=0.5", "train.lr=0.1")
    done = run((*words, "norm=sandwich,halved", "name=all"), my_parts.parent, ROOT / "src")
    assert done.returncode == 0, done.stdout + done.stderr
    return my_parts.parent / "outputs" / "all"


@pytest.mark.parametrize("name", PARTS)
def test_a_part_costs_two_edits_a_class_and_a_yaml(name):
    group, option, _ = PARTS[name]
    first, second = edits(name)
    assert first.startswith("`src/stability/parts/")
    assert second == f"`conf/{group}/{option}.yaml`:"
    assert section(name).strip().startswith("Two edits")


def test_all_parts_run_together_from_outside_the_package(swept):
    runs = sorted(p for p in swept.iterdir() if (p / "run.json").exists())
    assert [p.name.rpartition("_")[0] for p in runs] == ["norm-halved", "norm-sandwich"]
    for folder in runs:
        layers = pd.read_parquet(folder / "layers.parquet")
        assert layers["rms"].notna().all()
        assert (layers["nonfinite"] == 0).all()
    norms = set(layers.query("layer == 0 and kind == 'weight'")["site"])
    assert {"norm.alpha", "norm.out.alpha"} <= norms  # sandwich with DyT


def test_theory_follows_runs_of_external_parts(swept):
    """The rms of every branch, as far as a net of width 128 follows the limit of large width."""
    (folder,) = swept.glob("norm-sandwich*")
    theory = theory_of_run(folder).query(
        "kind == 'act' and site == 'branch_out' and sublayer != 'head'"
    )
    layers = pd.read_parquet(folder / "layers.parquet").query("step == 0 and kind == 'act'")
    key = ["layer", "sublayer", "site"]
    both = theory.merge(layers.astype({c: theory[c].dtype for c in key}), on=key)
    assert len(both) == 4
    assert both["rms_x"].to_numpy() == pytest.approx(both["rms_y"].to_numpy(), rel=0.15)


def test_momentum_asks_for_its_equation_and_makes_it(my_parts):
    node = {"_target_": "example_optimizer.Momentum", "beta": 0.5}
    config = make_config({"optimizer.build": node, "train.weight_decay": 0.1, "train.lr": 0.01})
    w = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = Optimizer({Key(0, "mlp", "w"): w}, update_rule_of(config), config.train)
    m = 0.0
    for step in range(3):
        before, w.grad = w.detach().clone(), torch.full_like(w, 2.0)
        m = 0.5 * m + 2 + 0.1 * before[0, 0].item()
        optimizer.gradients(torch.tensor(1.0))
        optimizer.step(step, torch.tensor(0.0))
        (asked,) = optimizer.asked([before])
        assert asked.tolist() == [[pytest.approx(-0.01 * m, rel=1e-6)] * 2] * 2
        assert (w.detach() - before)[0, 0].item() == pytest.approx(-0.01 * m, rel=1e-4)


def test_the_examples_are_what_they_say(my_parts):
    assert equation(example(my_parts, "A placement", 2, 0, "mlp")) == "x + N_out(f(N(x)))"
    x = torch.tensor([-1.0, 2.0])
    assert example(my_parts, "An activation")(x).tolist() == [0, 4]
    source = example(my_parts, "A data source", 5)
    assert (source.train[:5] == source.train[5:10]).all()
    assert len(np.unique(source.train)) < source.vocab


def test_the_kernel_of_the_activation_is_its_mean_over_gaussians(my_parts):
    F, D = example(my_parts, "An activation").kernel(np.array([[1.0, 0.3], [0.3, 2.0]]))
    inverse = np.linalg.inv([[1.0, 0.3], [0.3, 2.0]])

    def mean(power: int) -> float:
        def density(v: float, u: float) -> float:
            z = np.array([u, v])
            scale = 2 * np.pi * np.sqrt(np.linalg.det(inverse) ** -1)
            return float((u * v) ** power * np.exp(-z @ inverse @ z / 2) / scale)

        return float(integrate.dblquad(density, 0, 8, 0, 11)[0])

    assert F[0, 1] == pytest.approx(mean(2), rel=1e-5)
    assert D[0, 1] == pytest.approx(4 * mean(1), rel=1e-5)


# A sublayer kind changes the package: it is made in a copy ---------------------------------------

BEFORE = (
    ("src/stability/config/names.py", '    "linear": SublayerKind('),
    ("src/stability/config/names.py", 'BLOCK_SUBLAYERS = {"attn_mlp"'),
    ("src/stability/model/sublayers.py", "BRANCHES: dict["),
    ("src/stability/model/sublayers.py", '    "linear": LinearBranch'),
)
"""File of each step, and the text before which its code goes."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("copy")
    for folder in ("src", "conf", "experiments"):
        shutil.copytree(ROOT / folder, made / folder)
    for (name, before), code in zip(
        BEFORE, blocks(section("A sublayer kind"), "python"), strict=True
    ):
        text = (made / name).read_text()
        assert text.count(before) == 1
        where = text.index(before)
        if before.startswith("BLOCK_SUBLAYERS"):  # inside the braces
            where = text.index('"attn_mlp"', where)
        (made / name).write_text(text[:where] + code + "\n" + text[where:].lstrip("\n"))
    return made


def test_a_sublayer_kind_costs_five_edits():
    steps = edits("A sublayer kind")
    assert len(steps) == 5
    assert [step.split("`")[1] for step in steps[:4]] == [name for name, _ in BEFORE]


def test_a_new_sublayer_kind_runs_and_is_in_the_tables(copy):
    words = ("model.sublayers=average_mlp", "init=gpt2", "name=average")
    done = run(words, copy, copy / "src")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (p.parent for p in (copy / "outputs" / "average").glob("*/run.json"))
    rows = pd.read_parquet(folder / "layers.parquet").query("layer == 0 and kind == 'weight'")
    assert set(rows["sublayer"]) == {"average", "mlp"}
    std = rows.query("site == 'average' and step == 0")["rms"].item()
    assert std == pytest.approx(0.02 / 2, rel=0.03)  # 2L = 4 residual projections


def test_a_new_sublayer_kind_knows_which_keys_have_no_effect(copy):
    done = run(("model.sublayers=average_mlp", "model.causal=false"), copy, copy / "src")
    assert done.returncode == 2
    assert "model.sublayers=average_mlp has no attention" in done.stderr
