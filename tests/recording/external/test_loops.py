"""What external models and loops do, and what is recorded of it."""

import pandas as pd
import pytest
import torch
from torch import nn

import stability

LAYERS = r"layers\.(\d+)"


class Chain(nn.Module):
    """Linear layers in a row, with something done to the output of each."""

    def __init__(self, after=lambda x: x):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.after = after

    def forward(self, x):
        for layer in self.layers:
            x = self.after(layer(x))
        return x


def rows_of(folder, **where):
    frame = pd.read_parquet(folder / "layers.parquet").astype({"kind": str, "site": str})
    for name, value in where.items():
        frame = frame[frame[name] == value]
    return frame


def one_step(model, folder, optimizers=None, **options):
    x = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(1))
    optimizers = optimizers or [torch.optim.SGD(model.parameters(), lr=0.1)]
    with stability.record(model, folder, sites=LAYERS, **options):
        model(x).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


def test_an_output_changed_in_place_keeps_its_gradient(tmp_path):
    def in_place(x):
        x += 1
        return x

    found = {}
    for name, after in (("in place", in_place), ("apart", lambda x: x + 1)):
        torch.manual_seed(0)
        one_step(Chain(after), tmp_path / name)
        rows = rows_of(tmp_path / name).drop(columns="run")
        found[name] = rows.sort_values(["kind", "layer", "site"]).reset_index(drop=True)
    assert (found["apart"]["kind"] == "grad").sum() == 3
    acts = found["apart"]["kind"] == "act"  # the value is measured as the module returned it
    pd.testing.assert_frame_equal(found["in place"][~acts], found["apart"][~acts])
    pd.testing.assert_frame_equal(found["in place"][acts], found["apart"][acts])


def test_a_step_that_a_gradient_scaler_leaves_out_is_a_step_of_its_own(tmp_path):
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run, scale = tmp_path / "run", scaler.get_scale
    with stability.record(model, run, LAYERS, loss_scale=scale) as recording:
        for step in range(4):
            x = torch.randn(4, 5, 8)
            x[0, 0, 0] = float("inf") if step == 1 else 0.0
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    steps = pd.read_parquet(tmp_path / "run" / "steps.parquet")
    assert steps["skipped"].tolist() == [False, True, False, False]
    acts = rows_of(tmp_path / "run", kind="act", layer=0)
    assert acts["numel"].tolist() == [160] * 4
    assert (acts["nonfinite"] > 0).tolist() == [False, True, False, False]
    found = recording.first_bad
    assert (found["step"], found["kind"]) == (1, "act")


def test_what_is_logged_after_a_skipped_step_belongs_to_it(tmp_path):
    """A scaler often skips the first step: there is no row of an earlier step to add to."""
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with stability.record(model, tmp_path / "run", LAYERS, loss_scale=scaler.get_scale) as loop:
        for step in range(5):
            x = torch.randn(4, 5, 8)
            x[0, 0, 0] = float("inf") if step in (0, 1, 3) else 0.0
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            loop.log(loss=float(step))
    steps = pd.read_parquet(tmp_path / "run" / "steps.parquet")
    assert steps["step"].tolist() == [0, 1, 2, 3, 4]
    assert steps["loss"].tolist() == [0, 1, 2, 3, 4]
    assert steps["skipped"].tolist() == [True, True, False, True, False]
    acts = rows_of(tmp_path / "run", kind="act", layer=0)
    assert acts["step"].tolist() == [0, 1, 2, 3, 4] and acts["numel"].tolist() == [160] * 5


def test_what_is_logged_before_the_first_step_is_written_with_it(tmp_path):
    model = Chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stability.record(model, tmp_path / "run", LAYERS) as loop:
        loop.log(lr=0.1)
        for _ in range(2):
            model(torch.randn(4, 5, 8)).square().mean().backward()
            optimizer.step()
    steps = pd.read_parquet(tmp_path / "run" / "steps.parquet")
    assert steps["step"].tolist() == [0, 1]
    assert steps["lr"].fillna(0).tolist() == [0.1, 0]


def test_a_method_observe_of_an_external_module_is_not_called(tmp_path):
    class Observing(nn.Linear):
        def observe(self, output):
            raise AssertionError

    model = Chain()
    model.layers[1] = Observing(8, 8)
    one_step(model, tmp_path / "run")
    assert set(rows_of(tmp_path / "run", kind="grad")["layer"]) == {0, 1, 2}


def test_frozen_layers_and_unused_parameters_have_no_gradient_and_do_no_harm(tmp_path):
    model = Chain()
    model.layers[0].requires_grad_(False)
    model.unused = nn.Parameter(torch.ones(3))
    one_step(model, tmp_path / "run")
    assert set(rows_of(tmp_path / "run", kind="grad")["layer"]) == {1, 2}
    assert "unused" not in set(rows_of(tmp_path / "run", kind="weight_grad")["site"])
    assert set(rows_of(tmp_path / "run", kind="act")["layer"]) == {0, 1, 2}


def test_the_updates_of_both_optimizers_are_recorded(tmp_path):
    model = Chain()
    first = torch.optim.SGD(model.layers[0].parameters(), lr=0.1)
    second = torch.optim.SGD(model.layers[1:].parameters(), lr=0.1)
    one_step(model, tmp_path / "run", [first, second])
    updates = rows_of(tmp_path / "run", kind="update")
    assert set(updates["layer"]) == {0, 1, 2} and (updates["rms"] > 0).all()


@pytest.mark.parametrize(
    ("make", "sites", "error"),
    [
        (lambda: Chain().requires_grad_(False), LAYERS, "requires a gradient"),
        (lambda: nn.Identity(), LAYERS, "requires a gradient"),
        (Chain, "((", "not a valid regular expression"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_anything_is_written(
    tmp_path, make, sites, error
):
    with (
        pytest.raises(ValueError, match=error),
        stability.record(make(), tmp_path / "run", sites=sites),
    ):
        pass
    assert not (tmp_path / "run").exists()


def test_a_site_may_return_any_tree_that_holds_a_tensor(tmp_path):
    class Named(nn.Linear):
        def forward(self, x):
            return {"hidden": super().forward(x)}

    model = Chain(lambda x: x["hidden"])
    model.layers = nn.ModuleList(Named(8, 8) for _ in range(2))
    one_step(model, tmp_path / "run")
    assert set(rows_of(tmp_path / "run", kind="grad")["layer"]) == {0, 1}
