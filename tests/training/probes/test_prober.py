"""Probes as part of a run: they change nothing, and every option can be probed."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from probed import ALL, Probed, probes_of
from stability.config import knobs
from stability.results import schema
from stability.training import job, probes
from tiny import make_config, options, run

NORMED = {"norm_bytes", "norm_jacobian", "norm_sigma", "token_mean"}
"""Probes of norms, which have no rows where there are none."""


TRAINED = {
    "train.steps": 4,
    "train.keep_checkpoint": True,
    "train.accumulate": 2,
    "model.dropout": 0.1,
    "record.every": 2,
}


def numbers(frame):
    return frame.drop(columns=[c for c in ("run", "step_s", "record_s") if c in frame])


@pytest.mark.parametrize("norm_type", ["layernorm", "batchnorm"])
def test_probing_leaves_the_training_bitwise_as_it_was(norm_type, tmp_path):
    rans = []
    for name, asked in (("off", []), ("on", ALL)):
        torch.manual_seed(0)
        changes = {**TRAINED, "record.probes": asked, "train.eval_every": 1}
        rans.append(run(make_config(changes, norm_type=norm_type), tmp_path / name))
        rans[-1].built.model._left = torch.rand(4)  # what the global generator gives next
    off, on = rans
    assert off.info["run"] != on.info["run"]
    pd.testing.assert_frame_equal(numbers(off.layers), numbers(on.layers), check_exact=True)
    pd.testing.assert_frame_equal(numbers(off.steps), numbers(on.steps), check_exact=True)
    states = [r.built.model.state_dict() for r in rans]
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert torch.equal(off.built.model._left, on.built.model._left)
    assert not (off.folder / "probes.parquet").exists()
    rows = probes_of(on)
    assert sorted(set(rows.step)) == [0, 2, 3] and set(rows.probe) == set(ALL)
    assert not rows.duplicated(["step", "layer", "sublayer", "probe", "item"]).any()
    assert list(rows.columns) == [c.name for c in schema.PROBES]
    assert rows.value.notna().all()


def test_a_resumed_run_has_each_row_once_and_the_same_numbers(tmp_path):
    asked = [n for n in ALL if n != "jacobian"]
    cfg = make_config({**TRAINED, "record.probes": asked, "train.checkpoint_every": 0})
    whole = run(cfg, tmp_path / "whole")
    calls = iter([False, False, False, True])
    job.execute(cfg, tmp_path / "cut", stop=lambda: next(calls))
    resumed = run(cfg, tmp_path / "cut")
    pd.testing.assert_frame_equal(probes_of(whole), probes_of(resumed), check_exact=True)


def test_a_diverged_run_keeps_its_probes(tmp_path):
    changes = {"train.lr": 1e30, "optimizer": "sgd", "record.probes": ALL, "train.steps": 6}
    ran = run(make_config(changes, norm="none"), tmp_path / "run")
    assert ran.info["status"] == "diverged"
    rows = probes_of(ran)
    assert set(rows.step) <= set(ran.steps.step) and 0 in set(rows.step)
    assert not rows.duplicated(["step", "layer", "sublayer", "probe", "item"]).any()


VARIANTS = [
    *(
        {"norm": norm, "norm_type": kind}
        for norm in options("norm")
        for kind in options("norm_type")
    ),
    *({"init": init} for init in options("init")),
    *({"dtype": dtype} for dtype in knobs.DTYPES),
    {"model.position": "rope", "model.causal": False, "data.pad_share": 0.3},
    {"activation": "relu", "model.bias": False},
    {"model.sublayers": "linear"},
    {"model.sublayers": "mlp", "checkpointing": True},
]


WITHOUT_NORM = ("none", "plain", "rezero", "skipinit")


@pytest.mark.parametrize("over", VARIANTS, ids=str)
def test_every_option_can_be_probed(over):
    changes = {k: v for k, v in over.items() if "." in k}
    probed = Probed(ALL, changes, **{k: v for k, v in over.items() if "." not in k})
    assert np.isfinite(probed.rows["value"]).all()
    assert set(probed.rows["probe"]) == set(ALL) - (
        NORMED if over.get("norm") in WITHOUT_NORM else set()
    )
    wide = torch.float64 if over.get("dtype") == "fp64" else torch.float32
    assert {p.dtype for p in probed.prober.context.model.parameters()} == {wide}


def test_probes_are_found_by_looking_and_each_has_a_test_of_its_own():
    folder = Path(probes.__file__).parent
    assert {p.stem for p in folder.glob("[!_]*.py")} == set(ALL)
    tested = {p.stem.removeprefix("test_") for p in Path(__file__).parent.glob("test_*.py")}
    assert tested - {"prober"} == set(ALL)
    assert asdict(knobs.Config())["record"]["probes"] == []


@pytest.mark.parametrize("name", ALL)
def test_a_probe_says_what_its_items_are(name):
    """The table of a probe covers every item that it yields."""
    probed, items = Probed([name]), probes.load(name).ITEMS
    written = " ".join(item.name for item in items)
    assert items and all(item.value for item in items)
    for layer, sublayer, item in probed.values:
        last = item.split(".")[-1]
        assert (
            f"`{item}`" in written
            or f".{last}`" in written
            or "weight name" in written
            or (item.isdecimal() and "position" in written)
        ), (layer, sublayer, item)


@pytest.mark.parametrize("names", [["jacobians"], ["lesion", "lesion"], ["_context"]])
def test_unknown_probes_are_refused(names):
    with pytest.raises(knobs.ConfigError, match=r"record.probes.*jacobian, lesion"):
        make_config({"record.probes": names})
