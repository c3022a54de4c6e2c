"""`stability.lightning.Record`: each number of a Trainer's training against plain hooks."""

import math

import pytest
import torch

import stability
from external_loops import PlainHooks, assert_recorded, batch, chain, rows, state, steps

pytest.importorskip("lightning")

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

import stability.lightning

LAYERS = [f"net.layers.{i}" for i in range(3)]
SITES = r"net\.layers\.(\d+)"

HINTS = "lightning.fabric.utilities.warnings.PossibleUserWarning"
"""Such as: use more workers."""
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{HINTS}"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
]


def loss_of(y):
    return y.square().mean()


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = chain()

    def training_step(self, x, index):
        return loss_of(self.net(x))

    def validation_step(self, x, index):
        self.log("val_loss", loss_of(self.net(10 * x)))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class CallsItself(Module):
    def forward(self, x):
        return self.net(x)

    def training_step(self, x, index):
        return {"loss": loss_of(self(x))}


class Manual(Module):
    """Two optimizers, each with its own loss: layer 0, and the rest."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, x, index):
        x.requires_grad_()  # so that every layer has a gradient while others are frozen
        for optimizer, factor in zip(self.optimizers(), (1, 2), strict=True):
            self.toggle_optimizer(optimizer)
            loss = factor * loss_of(self.net(factor * x))
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
        return loss

    def configure_optimizers(self):
        groups = self.net.layers[0].parameters(), self.net.layers[1:].parameters()
        return [torch.optim.SGD(group, lr=lr) for group, lr in zip(groups, (0.1, 0.2), strict=True)]


def fit(folder, module, callbacks=(), batches=6, path=None, **options):
    torch.manual_seed(0)
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        callbacks=list(callbacks), **options,
    )  # fmt: skip
    data = torch.cat([batch(i) for i in range(batches)])
    loaders = [torch.utils.data.DataLoader(d, batch_size=4) for d in (data, data[:4])]
    trainer.fit(module, *loaders, ckpt_path=path)
    return trainer


OPTIONS = {
    "plain": (Module, {}),
    "through-forward": (CallsItself, {}),
    "accumulated": (Module, {"accumulate_grad_batches": 2}),
    "accumulated-unevenly": (Module, {"accumulate_grad_batches": 4}),
    "clipped": (Module, {"gradient_clip_val": 0.01}),
    "bf16": (Module, {"precision": "bf16-mixed"}),
    "validated": (Module, {"val_check_interval": 1}),
    "manual": (Manual, {}),
}


@pytest.mark.parametrize(("kind", "options"), OPTIONS.values(), ids=OPTIONS)
def test_each_number_is_that_of_plain_hooks_and_the_training_stays_as_it_is(
    tmp_path, kind, options
):
    module, other = kind(), kind()
    fit(tmp_path, module, [stability.lightning.Record(tmp_path / "run", SITES)], **options)
    plain = PlainHooks(other, LAYERS)
    fit(tmp_path, other, **options)
    plain.remove()
    accumulated = options.get("accumulate_grad_batches", 1)
    assert len(plain.steps) == (12 if kind is Manual else math.ceil(6 / accumulated))
    assert_recorded(tmp_path / "run", plain)
    weights = dict(other.named_parameters())
    assert all(torch.equal(p, weights[name]) for name, p in module.named_parameters())
    found = state(tmp_path / "run")
    assert found["status"] == "completed" and not found["notes"]
    assert found["finfo"]["dtype"] == ("amp_bf16" if "precision" in options else "fp32")
    assert hooks_of(module) == 0


def hooks_of(module):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())


class Losses(Callback):
    """The losses that the module computed, by step."""

    def __init__(self):
        self.losses, self.validated = [], []

    def on_train_batch_end(self, trainer, module, outputs, x, index):
        self.losses.append(outputs["loss"].item())

    def on_validation_end(self, trainer, module):
        self.validated.append(trainer.callback_metrics["val_loss"].item())


def test_steps_have_the_losses_and_the_learning_rate(tmp_path):
    losses = Losses()
    record = stability.lightning.Record(tmp_path / "run", SITES, kinds=["act"])
    options = {"val_check_interval": 2, "num_sanity_val_steps": 0}
    fit(tmp_path, Module(), [losses, record], **options)
    found = steps(tmp_path / "run")
    assert found.loss.tolist() == losses.losses and len(losses.losses) == 6
    assert found.lr.tolist() == [0.1] * 6  # the scheduler steps once an epoch
    assert found.val_loss.isna().tolist() == [True, False] * 3
    assert found.val_loss.dropna().tolist() == losses.validated


def test_the_loss_of_a_step_is_that_of_its_micro_batches_together(tmp_path):
    record = stability.lightning.Record(tmp_path / "run", SITES)
    fit(tmp_path, Module(), [record], accumulate_grad_batches=2)
    x = torch.cat([batch(0), batch(1)])
    assert steps(tmp_path / "run").loss[0] == pytest.approx(loss_of(chain()(x)).item())


def test_clipping_is_told_and_the_gradients_are_those_before_it(tmp_path):
    record = stability.lightning.Record(tmp_path / "run", SITES)
    fit(tmp_path, Module(), [record], gradient_clip_val=0.01)
    for step, row in steps(tmp_path / "run").iterrows():
        grads = rows(tmp_path / "run", step=step, kind="weight_grad")
        norm = ((grads.rms**2 * grads.numel).sum()) ** 0.5
        assert norm > 0.01 and row.clip_factor == pytest.approx(0.01 / norm, rel=1e-3)


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("mine"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_an_exception_ends_the_recording_with_its_rows(tmp_path, error, status):
    class Failing(Module):
        def training_step(self, x, index):
            if index == 2:
                raise error
            return super().training_step(x, index)

    module = Failing()
    with pytest.raises((ValueError, KeyboardInterrupt, SystemExit)):
        fit(tmp_path, module, [stability.lightning.Record(tmp_path / "run", SITES)])
    found = state(tmp_path / "run")
    assert found["status"] == status and type(error).__name__ in found["error"]
    assert sorted(set(rows(tmp_path / "run", kind="grad").step)) == [0, 1]
    assert hooks_of(module) == 0


class KnowsItsData(Module):
    """A data loader of torch begins anew when a training resumes."""

    def training_step(self, x, index):
        return loss_of(self.net(batch(self.global_step)))


class SavesAndStops(Callback):
    """Saves a checkpoint after two batches, and ends the training after three."""

    def on_train_batch_end(self, trainer, module, outputs, x, index):
        if index == 1:
            trainer.save_checkpoint(f"{trainer.default_root_dir}/two.ckpt")
        if index == 2:
            raise ValueError("mine")


def test_a_training_that_resumes_from_a_checkpoint_continues_the_recording(tmp_path):
    record = stability.lightning.Record(tmp_path / "run", SITES)
    with pytest.raises(ValueError, match="mine"):
        fit(tmp_path, KnowsItsData(), [record, SavesAndStops()])
    assert sorted(set(rows(tmp_path / "run").step)) == [0, 1, 2]
    record = stability.lightning.Record(tmp_path / "run", SITES)
    path = tmp_path / "two.ckpt"
    fit(tmp_path, KnowsItsData(), [record], path=path)
    whole = stability.lightning.Record(tmp_path / "whole", SITES)
    fit(tmp_path, KnowsItsData(), [whole])
    found = rows(tmp_path / "run").drop(columns="run")
    assert found.equals(rows(tmp_path / "whole").drop(columns="run"))
    assert state(tmp_path / "run")["status"] == "completed"
    assert steps(tmp_path / "run").loss.tolist() == steps(tmp_path / "whole").loss.tolist()


def test_a_second_training_in_a_folder_is_refused(tmp_path):
    fit(tmp_path, Module(), [stability.lightning.Record(tmp_path / "run", SITES)])
    with pytest.raises(FileExistsError, match="overwrite=True"):
        fit(tmp_path, Module(), [stability.lightning.Record(tmp_path / "run", SITES)])


def test_an_argument_that_is_not_legal_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="ring=-1"):
        stability.lightning.Record(tmp_path / "run", ring=-1)
