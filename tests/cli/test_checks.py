"""A knob that would do nothing in any run of a grid is refused, and one that does something not."""

import os

import pytest

from planning import planned, write
from stability.cli import checks
from stability.config.knobs import ConfigError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


IDLE = [
    "norm=none norm_type=rmsnorm",
    "norm=none,plain norm_type=layernorm,rmsnorm",
    "norm=plain norm_type.eps=1e-3",
    "norm=none norm_type.build.eps=1e-3",
    "dtype=fp64 train.state_dtype=param",
    "dtype=amp_fp16 train.state_dtype=param",
    "on_nonfinite=skip record.ring=3",
    "on_nonfinite=continue record.ring=3",
    "record.every=1 record.ring=3",
    "train.steps=0 train.lr=1",
    "train.steps=0 train.lr=1,2",
    "train.steps=0 optimizer=sgd",
    "train.steps=0 optimizer.betas=[0.5,0.5]",
    "train.steps=0 record.every=5",
]


@pytest.mark.parametrize("line", IDLE)
def test_a_knob_without_effect_in_any_run_is_refused_with_the_reason(line):
    key = line.split()[-1].partition("=")[0]
    with pytest.raises(ConfigError, match=r"has no effect: [a-z]") as refused:
        planned(*line.split())
    assert refused.value.key == key


@pytest.mark.parametrize(
    "line",
    [
        "norm=pre,none norm_type=layernorm,rmsnorm",
        "norm=none,peri norm_type.eps=1e-3",
        "norm=plain,none",
        "dtype=fp32,bf16 train.state_dtype=param",
        "record.ring=3",
        "train.steps=0 train.clip=1",
        "train.steps=0 train.accumulate=2 train.eval_every=0",
    ],
)
def test_a_knob_with_effect_in_one_of_the_runs_is_accepted(line):
    assert planned(*line.split())


def test_a_final_norm_alone_is_a_norm(tmp_path):
    write(
        tmp_path / "mine" / "ends.py",
        "from stability.parts.placements import NoNorm\n"
        "class Ends(NoNorm):\n"
        "    final_norm = True\n"
        "class Last(NoNorm):\n"
        "    def __call__(self, x, f, norm):\n"
        "        return norm(x + f(x)) if self.layer == self.depth - 1 else x + f(x)\n",
    )
    for name in ("Ends", "Last"):
        yaml = f"label: {name}\nbuild: {{_target_: ends.{name}}}\n"
        write(tmp_path / "mine" / "norm" / f"{name}.yaml", yaml)
        assert planned("--config-dir", "mine", f"norm={name}", "norm_type=rmsnorm")


def test_an_experiment_may_be_changed_so_that_a_key_of_it_does_nothing():
    assert len(planned("experiments=vanishing", "train.steps=0")) == 9
    with pytest.raises(ConfigError, match=r"record\.every=7: has no effect"):
        planned("experiments=vanishing", "train.steps=0", "record.every=7")


def test_an_experiment_as_written_must_not_have_a_key_that_does_nothing(tmp_path):
    text = "# @package _global_\nname: idle\ntrain: {steps: 0, lr: 1}\n"
    write(tmp_path / "mine" / "experiments" / "idle.yaml", text)
    with pytest.raises(ConfigError, match=r"train\.lr=1: has no effect"):
        planned("--config-dir", "mine", "experiments=idle", "out=elsewhere")


@pytest.mark.parametrize("missing", [os.W_OK, os.X_OK])
def test_a_folder_in_which_no_file_can_be_made_is_refused(tmp_path, monkeypatch, missing):
    (tmp_path / "there").mkdir()
    assert planned("out=there/below", "name=s")
    monkeypatch.setattr(checks.os, "access", lambda folder, mode: not mode & missing)
    with pytest.raises(ConfigError, match=r"out=there/below: there is not writable"):
        planned("out=there/below", "name=s")


def test_what_is_refused_names_the_value_that_was_given():
    with pytest.raises(ConfigError, match=r"^norm_type=rmsnorm: has no effect: norm=none has no"):
        planned("norm=none", "norm_type=rmsnorm")
