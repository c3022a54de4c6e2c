"""`compare` says in what two runs, or two sweeps, differ: config, numbers, the first bit."""

import shutil

import pandas as pd
import pytest
import torch
from torch import nn

import stability
from stability import run
from stability.difference.command import main
from stability.results.atomic import Unreadable

SMALL = (
    *("model.width=16", "model.heads=2", "model.context=16", "train.batch_size=2", "depth=2"),
    *("device=cpu", "threads=1", "record.every=1", "n_jobs=1"),
)


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """Two sweeps of three seeds, Pre-LN and Post-LN, and a longer run of Pre-LN."""
    out = tmp_path_factory.mktemp("sweeps")
    for name, words in (
        ("pre", ["norm=pre", "seed=0,1,2", "train.steps=3"]),
        ("post", ["norm=post", "seed=0,1,2", "train.steps=3"]),
        ("long", ["norm=pre", "seed=0", "train.steps=5"]),
    ):
        assert run.main([*SMALL, *words, f"out={out}", f"name={name}"]) == 0
    return out


def only(sweep, seed=None):
    """The folder of one run."""
    found = [p.parent for p in sorted(sweep.glob("*/run.json"))]
    return next(p for p in found if seed is None or f"seed-{seed}_" in p.name)


def test_a_run_and_its_copy_are_the_same_bits(sweeps, tmp_path, capsys):
    a = only(sweeps / "pre", 0)
    shutil.copytree(a, tmp_path / "copy")
    found = stability.compare(a, tmp_path / "copy")
    assert found.is_within(0.0) and found.config.empty
    assert main([str(a), str(tmp_path / "copy"), "--tolerance", "0"]) == 0
    assert "the same bits: yes" in capsys.readouterr().out


def test_what_differs_is_named_in_config_numbers_and_first_place(sweeps):
    a, b = only(sweeps / "pre", 0), only(sweeps / "post", 0)
    found = stability.compare(a, b)
    assert found.config.set_index("key").loc["norm"].tolist() == ["pre", "post"]
    losses = [stability.load(path, "steps").loss.tolist() for path in (a, b)]
    row = found.numbers.set_index("number").loc["loss"]
    assert (row["a"], row["b"]) == (losses[0][-1], losses[1][-1])
    assert row["difference"] == pytest.approx(losses[1][-1] - losses[0][-1])
    assert "step 0, loss" in found.differences["first in loss"][0]
    assert not found.is_within(1e-6)


def test_the_tolerance_decides_the_exit_code(sweeps, capsys):
    a, b = str(only(sweeps / "pre", 0)), str(only(sweeps / "post", 0))
    assert main([a, b]) == 0
    assert main([a, b, "--tolerance", "1e-3"]) == 1
    assert main([a, b, "--tolerance", "1e9"]) in (0, 1)
    assert main([a, a, "--tolerance", "1e-3"]) == 0
    capsys.readouterr()


def test_sweeps_are_paired_by_seed_and_have_intervals(sweeps):
    found = stability.compare(sweeps / "pre", sweeps / "post")
    row = found.numbers.set_index("number").loc["final_val_loss"]
    assert row["pairs"] == 3
    each = {
        name: stability.load(sweeps / name, "runs").set_index("seed").final_val_loss
        for name in ("pre", "post")
    }
    differences = (each["post"] - each["pre"]).to_numpy()
    half = 4.302653 * differences.std(ddof=1) / 3**0.5  # Student's t, two degrees of freedom
    assert row["difference"] == pytest.approx(differences.mean())
    assert row["low"] == pytest.approx(differences.mean() - half, rel=1e-5)
    assert row["high"] == pytest.approx(differences.mean() + half, rel=1e-5)
    assert len(found.pairs) == 3


def test_a_longer_run_is_compared_over_common_steps_and_said_to_be_longer(sweeps, capsys):
    a, b = only(sweeps / "pre", 0), only(sweeps / "long")
    found = stability.compare(a, b)
    assert found.pairs[0].found.loss is None  # the common steps agree
    assert any("step" in note for note in found.notes)
    assert main([str(a), str(b), "--tolerance", "0"]) == 1
    capsys.readouterr()


def test_the_figure_and_the_tables_are_written(sweeps, tmp_path, capsys):
    a, b = str(sweeps / "pre"), str(sweeps / "post")
    assert main([a, b, "--out", str(tmp_path), "--stat", "grad.rms"]) == 0
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    curves = pd.read_csv(tmp_path / "compare_curves.csv")
    assert not curves.empty
    assert {p.name for p in tmp_path.glob("*.csv")} == {
        f"compare_{name}.csv" for name in ("config", "numbers", "differences", "curves")
    }
    capsys.readouterr()


def test_in_a_notebook_it_shows_tables_and_the_figure(sweeps):
    found = stability.compare(only(sweeps / "pre", 0), only(sweeps / "post", 0))
    assert "norm" in repr(found)
    page = found._repr_html_()
    assert "<table" in page and "data:image/png;base64," in page


def test_recordings_of_a_loop_are_compared_like_runs(tmp_path):
    for name, lr in (("one", 0.1), ("two", 0.2)):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        with stability.record(model, tmp_path / name, r"(\d+)", settings={"lr": lr}) as loop:
            for _ in range(3):
                loss = model(torch.ones(2, 4)).square().mean()
                loss.backward()
                loop.log(loss=loss)
                optimizer.step()
                optimizer.zero_grad()
    found = stability.compare(tmp_path / "one", tmp_path / "two")
    assert found.config.set_index("key").loc["settings.lr"].tolist() == ["0.1", "0.2"]
    (row,) = found.differences.to_dict("records")
    assert "step 1, loss" in row["first in loss"]  # step 0 is the same pass
    assert "step 0, " in row["first in layers"] and "update" in row["first in layers"]


def test_seeds_without_a_partner_are_named_and_fail_a_check(sweeps):
    found = stability.compare(sweeps / "pre", sweeps / "long")
    assert len(found.pairs) == 1 and found.unmatched
    assert not found.is_within(1e9)


def test_what_cannot_be_compared_is_refused_in_a_line(sweeps, capsys):
    assert main([str(sweeps / "nothing"), str(sweeps / "pre")]) == 2
    error = capsys.readouterr().err
    assert "does not exist" in error and error.count("\n") == 1


def test_a_negative_tolerance_is_refused(sweeps):
    a = only(sweeps / "pre", 0)
    with pytest.raises(ValueError, match="at least 0"):
        stability.compare(a, a).is_within(-1.0)
    with pytest.raises(Unreadable):
        stability.compare(a, sweeps / "nothing")
