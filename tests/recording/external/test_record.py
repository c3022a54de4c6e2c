"""`record` serves models and training loops that are not part of this package."""

import dataclasses
import json

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import stability
from stability import plot
from stability.recording.external.sites import matching
from stability.results import statistics
from stability.results.run_file import RunFile

LAYERS = r"layers\.(\d+)"


def encoder(dropout=0.1):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=dropout)
    body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return nn.Sequential(body, nn.Linear(16, 1))


def train(model, steps, recording=None, batches=None):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(3, 5, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if recording:
            recording.log(loss=loss.item())
    return losses


def test_a_hand_written_loop_over_torchs_encoder_is_recorded(tmp_path):
    model = encoder()
    with stability.record(model, tmp_path / "run", sites=LAYERS, every=2) as recording:
        losses = train(model, 5, recording)
    layers = stability.load(tmp_path / "run")
    stream = layers[(layers.site == "resid_post") & (layers.kind == "act")]
    assert sorted(stream.step.unique()) == [0, 2, 4]
    assert sorted(stream.layer.unique()) == [0, 1, 2, 3]
    grads = layers[(layers.site == "resid_post") & (layers.kind == "grad")]
    assert len(grads) == len(stream) == 12
    assert stream.first_share.between(0, 1).all()
    parameters = len(list(model.parameters()))
    for kind in ("weight", "weight_grad", "update"):
        assert (layers.kind == kind).sum() == 3 * parameters
    steps = stability.load(tmp_path / "run", "steps")
    assert steps.loss.tolist() == losses


@pytest.mark.parametrize("told", [True, False], ids=["losses told", "losses kept"])
def test_a_recorded_loop_is_plotted_like_any_run(tmp_path, told):
    model = encoder()
    with stability.record(model, tmp_path / "mine" / "run", sites=LAYERS) as recording:
        train(model, 3, recording if told else None)
    assert plot.main([str(tmp_path / "mine"), "--format", "png"]) == 0
    drawn = {p.stem for p in (tmp_path / "mine" / "figures").glob("*.png")}
    assert {"variance", "gradient", "gradient_map", "weight_gradient", "update_ratio"} <= drawn
    limits = pd.read_csv(tmp_path / "mine" / "figures" / "dynamic_range.csv")
    assert set(limits["format"]) == {"fp32"}
    assert ("loss" in drawn) is told


def test_recording_a_foreign_loop_changes_no_weight(tmp_path):
    plain, watched = encoder(), encoder()
    losses = train(plain, 6)
    with stability.record(watched, tmp_path / "run", sites=LAYERS):
        assert train(watched, 6) == losses
    pairs = zip(plain.parameters(), watched.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_the_numbers_are_those_of_the_modules_outputs_and_gradients(tmp_path):
    model, seen = encoder(dropout=0.0), {}
    for i, layer in enumerate(model[0].layers):
        layer.register_forward_hook(
            lambda _, __, out, i=i: (out.retain_grad(), seen.update({i: out}))[1]
        )
    with stability.record(model, tmp_path / "run", sites=LAYERS):
        train(model, 1)
    layers = pd.read_parquet(tmp_path / "run" / "layers.parquet")
    for i, out in enumerate(seen.values()):
        for kind, tensor in (("act", out.detach()), ("grad", out.grad)):
            (row,) = layers[
                (layers.layer == i) & (layers.site == "resid_post") & (layers.kind == kind)
            ].itertuples()
            assert row.rms == pytest.approx(tensor.double().square().mean().sqrt().item())
            share = tensor[:, 0].double().square().sum() / tensor.double().square().sum()
            assert row.first_share == pytest.approx(share.item())


def test_a_loss_scale_is_divided_out_of_activations_gradients(tmp_path):
    rms = {}
    for scale in (1.0, 1024.0):
        model, folder = encoder(dropout=0.0), tmp_path / str(scale)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with stability.record(model, folder, sites=LAYERS, loss_scale=lambda s=scale: s):
            (model(torch.ones(2, 3, 16)).mean() * scale).backward()
            optimizer.step()
        layers = pd.read_parquet(folder / "layers.parquet")
        rms[scale] = layers[(layers.kind == "grad")].rms.tolist()
    assert rms[1024.0] == pytest.approx(rms[1.0], rel=1e-5)


class Experts(nn.Module):
    """Two experts of which the second gets no token, as a router may have it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x_BTD):
        return self.layers[0](x_BTD).sum() + self.layers[1](x_BTD[:, :0]).sum()


def test_of_an_expert_without_a_token_counts_are_zero_and_values_null(tmp_path):
    model = Experts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stability.record(model, tmp_path / "run", sites=LAYERS) as recording:
        model(torch.ones(2, 3, 4)).backward()
        optimizer.step()
    assert recording.first_bad is None
    layers = pq.read_table(tmp_path / "run" / "layers.parquet").to_pylist()
    idle = [r for r in layers if r["layer"] == 1 and r["kind"] in ("act", "grad")]
    assert [r["numel"] for r in idle] == [0, 0]
    for row in idle:
        assert row["nonfinite"] == row["zeros"] == 0
        assert {row[f.name] for f in statistics.FIELDS if not f.is_count} == {None}


def test_an_optimizer_of_another_model_ends_no_step(tmp_path):
    model, other = encoder(), nn.Linear(2, 1)
    stranger = torch.optim.SGD(other.parameters(), lr=0.1)
    with stability.record(model, tmp_path / "run", sites=LAYERS) as recording:
        other(torch.ones(1, 2)).sum().backward()
        stranger.step()
        train(model, 2)
        assert recording.steps_done == 2


def test_two_optimizers_after_one_backward_pass_make_one_step(tmp_path):
    model = encoder()
    body, head = (torch.optim.SGD(part.parameters(), lr=0.1) for part in model)
    with stability.record(model, tmp_path / "run", sites=LAYERS) as recording:
        for _ in range(3):
            model(torch.randn(3, 5, 16)).square().mean().backward()
            for optimizer in (body, head):
                optimizer.step()
                optimizer.zero_grad()
        assert recording.steps_done == 3


def test_the_first_bad_site_of_a_foreign_model_is_named(tmp_path):
    model = encoder()
    with torch.no_grad():
        model[0].layers[2].linear1.weight[0, 0] = float("nan")
    with stability.record(model, tmp_path / "run", sites=LAYERS, kinds=["act"]):
        train(model, 1)
    state = json.loads((tmp_path / "run" / "run.json").read_text())
    assert state["first_bad"]["layer"] == 2
    assert state["first_bad"]["kind"] == "act"


def test_a_ring_keeps_the_steps_before_the_first_bad_one(tmp_path):
    model = encoder()
    sites, folder = {"sites": LAYERS, "every": 100}, tmp_path / "run"
    with stability.record(model, folder, **sites, ring=2) as recording:
        train(model, 6, recording)
        with torch.no_grad():
            model[0].layers[1].linear1.weight[0, 0] = float("inf")
        train(model, 3, recording)
    layers = pd.read_parquet(folder / "layers.parquet")
    assert sorted(layers.step.unique()) == [0, 4, 5, 6]
    assert json.loads((folder / "run.json").read_text())["first_bad"]["step"] == 6


def test_an_exception_in_the_loop_is_kept_and_the_hooks_go(tmp_path):
    model = encoder()
    with pytest.raises(ZeroDivisionError), stability.record(model, tmp_path / "r", sites=LAYERS):
        train(model, 2)
        1 / 0  # noqa: B018
    state = json.loads((tmp_path / "r" / "run.json").read_text())
    assert state["status"] == "failed"
    assert state["error"] == "ZeroDivisionError: division by zero"
    assert state["outcome"] == f"failed: {state['error']}"
    assert state["steps_done"] == 2 and state["finished"] is not None
    assert not any(m._forward_hooks for m in model.modules())
    train(model, 1)
    assert pd.read_parquet(tmp_path / "r" / "layers.parquet").step.max() == 1


def test_run_json_has_the_fields_of_every_run_in_their_order(tmp_path):
    model = encoder()
    with stability.record(model, tmp_path / "run", sites=LAYERS) as recording:
        train(model, 2, recording)
    state = json.loads((tmp_path / "run" / "run.json").read_text())
    assert list(state) == [f.name for f in dataclasses.fields(RunFile)]
    assert state["status"] == state["outcome"] == "completed"
    assert (state["folder"], state["run"], state["steps_done"]) == ("run", recording.run, 2)
    assert state["parameters"] == sum(p.numel() for p in model.parameters())
    assert state["device"].startswith("cpu (")
    assert state["finfo"]["dtype"] == "fp32"
    assert state["finfo"]["smallest_subnormal"] == 2.0**-149
    assert 0 < state["record_seconds"] < state["seconds"]
    assert state["started"] <= state["finished"]
    applies_not = {"final_loss", "final_val_loss", "learned", "identity", "error", "first_bad"}
    applies_not |= {"notes"}
    assert {name for name, value in state.items() if value is None} - {"git"} == applies_not


@pytest.mark.parametrize(
    ("sites", "words"),
    [
        (r"nothing\.(\d+)", "matches none"),
        (r"layers\.\d+", "needs a group"),
        (r"layers\.\d+\.(linear\d)", "not a number"),
        (r"layers\.(\d+)\.linear\d", "two modules"),
    ],
)
def test_a_pattern_that_cannot_serve_is_refused(sites, words):
    with pytest.raises(ValueError, match=words):
        matching(encoder(), sites)


def test_a_second_group_names_the_sublayer():
    model = encoder()
    found = matching(model, r"layers\.(\d+)\.(linear1|linear2)")
    assert {site.key.sublayer for sites in found.of.values() for site in sites} == {
        "linear1",
        "linear2",
    }
    weights = [found.key_of(name) for name, _ in model.named_parameters()]
    assert {key.sublayer for key in weights} == {"linear1", "linear2", "outside"}


def test_a_folder_that_holds_a_run_is_refused(tmp_path):
    model = encoder()
    with stability.record(model, tmp_path / "run", sites=LAYERS):
        train(model, 1)
    with pytest.raises(FileExistsError), stability.record(model, tmp_path / "run", sites=LAYERS):
        pass
