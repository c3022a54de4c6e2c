"""Placements of several streams in the model: their laws at init, their rows, ways of running."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from stability.config.knobs import Config
from stability.model import build
from stability.recording.recorder import Recorder
from stability.theory.limits import NoTheory
from stability.theory.recursion import Net
from tiny import make_config, options, placements_of_one_stream, run

STREAMS = {"residual": ("x", "r"), "siamese": ("x", "y")}
LONG = {"train.steps": 20, "record.every": 10, "optimizer": "sgd"}
LINEAR = {"model.sublayers": "linear", "model.width": 256, "model.heads": 1, "model.bias": False}


def keep(into: dict, name: str, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
    into[name] = output


def variances(config: Config, seeds: int = 4) -> dict[str, float]:
    """Mean square of each stream after the last sublayer, of x_0 with unit variance."""
    found: dict[str, float] = {}
    for seed in range(seeds):
        config.seed = seed
        model = build.model_of(config, 512).double()
        kept: dict[str, torch.Tensor] = {}
        for name, site in model.blocks[-1].sublayers()["linear"].streams.items():
            site.register_forward_hook(partial(keep, kept, name))
        with torch.no_grad():
            model(torch.arange(32).reshape(4, 8))
        for name, x in kept.items():
            found[name] = found.get(name, 0.0) + float(x.square().mean()) / seeds
    return found


@pytest.mark.parametrize("depth", [6, 24])
def test_each_stream_grows_by_its_law_for_linear_branches(depth):
    """Branches W N(.) of unit gain, n = L: Pre-LN adds 1 a sublayer, which y of SiameseNorm does.

    Its x is normed, and then gets a branch of variance 1 / (2 L). A branch of ResiDual reads its
    x, of variance 1 in all sublayers but the first, so r grows as Pre-LN too.
    """
    embed = {"init.embed_std": math.sqrt(0.5), "model.position": "learned", "init": "lecun"}
    config = {n: make_config(LINEAR | embed, norm=n, depth=depth) for n in STREAMS}
    siamese, residual = variances(config["siamese"]), variances(config["residual"])
    assert siamese["y"] == pytest.approx(1 + depth, rel=0.05)
    assert 0.9 < siamese["x"] < 1.5
    assert residual["r"] == pytest.approx(1 + depth, rel=0.05)
    assert residual["x"] == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("norm", STREAMS)
def test_twenty_steps_record_every_stream(norm, tmp_path):
    ran = run(make_config(LONG, norm=norm, depth=4), tmp_path)
    assert ran.info["status"] == "completed"
    act = ran.layers[ran.layers["kind"].isin(["act", "grad"]) & (ran.layers["sublayer"] == "mlp")]
    whole = act[act["site"] == "resid_post"].set_index(["step", "layer", "kind"])["rms"]
    assert len(whole) == 2 * 4 * ran.layers["step"].nunique()
    squares = [
        act[act["site"] == f"resid_post.{name}"].set_index(whole.index.names)["rms"] ** 2
        for name in STREAMS[norm]
    ]
    assert ((squares[0] + squares[1]) / 2).to_dict() == pytest.approx((whole**2).to_dict())


@pytest.mark.parametrize("norm", STREAMS)
def test_checkpointing_changes_neither_loss_nor_rows(norm, tmp_path):
    runs = [run(make_config(norm=norm, checkpointing=c), tmp_path / str(c)) for c in (False, True)]
    assert runs[0].steps.loss.tolist() == pytest.approx(runs[1].steps.loss.tolist(), rel=1e-6)
    assert len(runs[0].layers) == len(runs[1].layers)


@pytest.mark.parametrize("norm", STREAMS)
def test_theory_says_that_it_has_none_of_several_streams(norm):
    with pytest.raises(NoTheory, match="the placement carries 2 streams"):
        Net(make_config(norm=norm), 64)


def test_sites_of_streams_are_left_out_with_resid_post():
    model = build.model_of(make_config(norm="residual"), 64)
    recorder = Recorder(model.sites(), model.weights(), names=("branch_in",))
    assert {key.name for _, keys in recorder._hooks.expected for key in keys} == {"branch_in"}


def test_every_placement_of_several_streams_is_tested_here():
    assert STREAMS.keys() == set(options("norm")) - set(placements_of_one_stream())
