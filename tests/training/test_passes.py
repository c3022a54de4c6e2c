"""The passes of a run by hand: parts of a batch, loss scale, validation, clipping."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stability.model import build
from stability.model.gpt import loss_sum
from stability.parts.batches import IGNORED
from stability.training import passes
from stability.training.passes import forward_backward, train_batch, val_batch
from stability.training.step import TrainingState, training_step
from tiny import make_config


def built(**changes):
    return build.build(make_config({"dtype": "fp64", **changes}))


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


def alone(built, batch):
    """The mean loss over tokens that count, and its gradients, in one pass."""
    _, x, y = batch
    built.model.zero_grad()
    loss = loss_sum(built.model(x), y) / (y != IGNORED).sum()
    loss.backward()
    return loss.detach(), gradients(built.model)


@pytest.mark.parametrize("parts", [1, 3, 4])
def test_parts_of_a_batch_count_by_their_tokens_and_carry_the_loss_scale(parts):
    made = built(**{"train.accumulate": parts, "data.pad_share": 0.4, "loss_scale": 8})
    batch = train_batch(made, 0)
    wanted, exact = alone(made, batch)
    found = forward_backward(made, batch, made.recorder)
    assert float(found) == pytest.approx(float(wanted), rel=1e-12)
    for g, e in zip(gradients(made.model), exact, strict=True):
        torch.testing.assert_close(g, 8 * e, rtol=1e-9, atol=1e-12)


def test_a_pass_starts_from_gradients_of_zero_and_tells_the_recorder_of_each_part():
    made = built(**{"train.accumulate": 2})
    told = []

    class Recorder:
        def pass_done(self):
            told.append(gradients(made.model))

        def pass_has_padding(self, padding_BT):
            raise AssertionError(padding_BT)

    for _ in range(2):
        forward_backward(made, train_batch(made, 0), Recorder())
    assert len(told) == 4
    assert all(torch.equal(a, b) for a, b in zip(told[1], told[3], strict=True))
    assert not torch.equal(told[0][0], told[1][0])


def test_the_loss_of_low_precision_is_summed_in_fp32():
    made = built(dtype="bf16")
    assert forward_backward(made, train_batch(made, 0)).dtype == torch.float32


@pytest.mark.parametrize(("share", "same"), [(0.0, True), (0.5, False)])
def test_dropout_depends_on_the_seed_and_the_step_alone(share, same):
    made = built(**{"model.dropout": share})
    batch = train_batch(made, 0)

    def loss(step, seed=0):
        other = made._replace(config=replace(made.config, seed=seed))
        return float(forward_backward(other, batch._replace(step=step)))

    first = loss(0)
    torch.rand(3)
    assert loss(0) == first
    assert (loss(1) == first) is same
    assert (loss(0, seed=1) == first) is same


def test_the_batch_is_that_of_the_source():
    made = built(seed=3, **{"data.pad_share": 0.4})
    shape = made.config.train.batch_size, made.config.model.context
    pairs = [
        (train_batch(made, 2), made.source.batch(2, *shape, 3, 0.4)),
        (val_batch(made, 2, step=2), made.source.val_batch(2, *shape, 0.4)),
    ]
    for (step, *found), wanted in pairs:
        assert step == 2
        assert all(np.array_equal(f, w) for f, w in zip(found, wanted, strict=True))


def test_validation_is_the_mean_over_tokens_of_the_fixed_batches_without_dropout():
    made = built(**{"train.eval_batches": 3, "data.pad_share": 0.4, "model.dropout": 0.5})
    found = passes.validate(made)
    assert made.model.training
    made.model.eval()
    batches = [val_batch(made, index) for index in range(3)]
    losses = [loss_sum(made.model(x), y).item() for _, x, y in batches]
    counts = [int((y != IGNORED).sum()) for _, _, y in batches]
    assert len(set(counts)) > 1
    assert found == pytest.approx(sum(losses) / sum(counts), rel=1e-12)


@pytest.mark.parametrize(
    ("limit", "factor"), [(0.0, 1.0), (5.0, 1.0), (6.0, 1.0), (2.5, 0.5), (1, 0.2)]
)
def test_gradients_are_scaled_down_to_the_limit_and_never_up(limit, factor):
    grads = [torch.tensor([3.0, 0.0]), torch.tensor([4.0])]
    found = passes.clip(grads, torch.tensor(5.0, dtype=torch.float64), limit)
    assert float(found) == pytest.approx(factor)
    assert torch.cat(grads).tolist() == pytest.approx([3 * factor, 0, 4 * factor])


def test_gradients_of_zero_are_left_as_they_are():
    grads = [torch.zeros(2)]
    factor = passes.clip(grads, torch.tensor(0.0), 0.5)
    assert float(factor) == 1
    assert grads[0].tolist() == [0, 0]


def test_an_update_divides_out_the_loss_scale_clips_and_uses_the_steps_rate():
    changes = {"optimizer": "sgd", "train.clip": 0.01, "train.lr": 0.5}
    made = built(**changes, **{"train.warmup_steps": 2, "loss_scale": 8})
    _, exact = alone(made, train_batch(made, 0))
    before = [p.detach().clone() for p in made.model.parameters()]
    training_step(TrainingState(made), train_batch(made, 0), record=False)
    norm = torch.sqrt(sum(g.square().sum() for g in exact))
    for p, old, g in zip(made.model.parameters(), before, exact, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.25 * g * 0.01 / norm, rtol=1e-7, atol=1e-12)
