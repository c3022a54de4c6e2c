"""What belongs to a step, whatever the loop does: each number against plain hooks."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import stability
from external_loops import LAYERS, batch, chain, rows, state, steps


def loss_of(y):
    return y.square().mean()


def rms(tensor):
    return tensor.detach().double().square().mean().sqrt().item()


def by_hand(model, work):
    """The layers' outputs with their gradients, for each forward pass of `work(model)`."""
    passes = []

    def hook(i, out):
        if i == 0:
            passes.append({})
        if out.requires_grad:
            out.retain_grad()
        passes[-1][i] = out

    handles = [
        layer.register_forward_hook(lambda _, __, out, i=i: hook(i, out))
        for i, layer in enumerate(model.layers)
    ]
    work(model)
    for handle in handles:
        handle.remove()
    return passes


def joined(passes, grads=False):
    """The rms of each layer over several passes together."""
    pick = (lambda t: t.grad) if grads else (lambda t: t)
    return [rms(torch.cat([pick(p[i]) for p in passes])) for i in sorted(passes[0])]


def assert_like(folder, passes, step=0):
    for kind in ("act", "grad"):
        found = rows(folder, kind=kind, step=step)
        assert found.rms.tolist() == pytest.approx(joined(passes, kind == "grad"), rel=1e-6)
        numel = sum(p[0].numel() for p in passes)
        assert found.numel.tolist() == [numel] * len(found)


def sgd(model, lr=0.1, **options):
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


# Closures.


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_closure_is_recorded_like_a_manual_loop(tmp_path, number, by_name):
    def manual(model, optimizer, x):
        optimizer.zero_grad()
        loss_of(model(x)).backward()
        optimizer.step()

    def closed(model, optimizer, x):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model(x))
            loss.backward()
            return loss

        optimizer.step(closure=closure) if by_name else optimizer.step(closure)

    found = []
    for name, make_step in (("manual", manual), ("closed", closed)):
        model = chain()
        optimizer = sgd(model)
        with stability.record(model, tmp_path / name, LAYERS) as recording:
            for step in range(number):
                make_step(model, optimizer, batch(step))
        assert recording.steps_done == number
        found.append(rows(tmp_path / name).drop(columns="run"))
    pd.testing.assert_frame_equal(*found)
    assert len(found[0]) == number * (3 + 3 + 3 * 6)


def test_passes_before_a_closure_accumulate_with_those_inside(tmp_path):
    model, optimizer = chain(), None
    optimizer = sgd(model)

    def work(model):
        loss_of(model(batch(1))).backward()

        def closure():
            loss = loss_of(model(batch(2)))
            loss.backward()
            return loss

        optimizer.step(closure)

    with stability.record(model, tmp_path / "run", LAYERS):
        work(model)
    model = chain()
    optimizer = sgd(model)
    passes = by_hand(model, work)
    assert_like(tmp_path / "run", passes)


def test_of_the_evaluations_of_lbfgs_the_last_counts(tmp_path):
    def work(model):
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model(batch()))
            loss.backward()
            return loss

        optimizer.step(closure)

    model = chain()
    with stability.record(model, tmp_path / "run", LAYERS) as recording:
        work(model)
    passes = by_hand(chain(), work)
    assert len(passes) > 1 and recording.steps_done == 1
    assert_like(tmp_path / "run", passes[-1:])


# Several passes.


def test_micro_batches_of_different_sizes_merge_by_tokens(tmp_path):
    def work(model):
        for size in (4, 1, 2):
            loss_of(model(batch()[:size])).backward()
        sgd(model).step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS):
        work(model)
    passes = by_hand(chain(), work)
    assert len(passes) == 3
    assert_like(tmp_path / "run", passes)


def test_forward_passes_before_their_backward_passes_belong_to_one_step(tmp_path):
    def work(model):
        losses = [loss_of(model(batch(i))) for i in range(3)]
        sum(losses).backward()
        sgd(model).step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS):
        work(model)
    assert_like(tmp_path / "run", by_hand(chain(), work))


@pytest.mark.parametrize("kept", [(True, False), (True, True)])
def test_two_backward_passes_through_one_forward_pass_add_up(tmp_path, kept):
    def work(model):
        y = model(batch())
        loss_of(y).backward(retain_graph=kept[0])
        (-3 * y.mean()).backward(retain_graph=kept[1])
        sgd(model).step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS):
        work(model)
    assert_like(tmp_path / "run", by_hand(chain(), work))


@pytest.mark.parametrize("in_eval_mode", [True, False])
def test_a_validation_with_gradients_between_steps_is_left_out(tmp_path, in_eval_mode):
    def work(model):
        optimizer = sgd(model, lr=0.0)
        for i in range(3):
            model.train()
            optimizer.zero_grad()
            loss_of(model(batch(i))).backward()
            optimizer.step()
            model.train(not in_eval_mode)
            model(100 * batch(7))

    with stability.record(model := chain(), tmp_path / "run", LAYERS):
        work(model)
    passes = by_hand(chain(), work)[::2]
    for step, one in enumerate(passes):
        assert_like(tmp_path / "run", [one], step)


def test_a_model_that_is_trained_in_eval_mode_is_recorded(tmp_path):
    model = chain().eval()
    optimizer = sgd(model)
    with stability.record(model, tmp_path / "run", LAYERS, every=2) as recording:
        for i in range(5):
            loss_of(model(batch(i))).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert recording.steps_done == 5
    assert sorted(set(rows(tmp_path / "run", kind="grad").step)) == [0, 2, 4]
    assert sorted(set(rows(tmp_path / "run", kind="weight").step)) == [0, 2, 4]


def test_passes_that_the_loop_throws_away_belong_to_no_step(tmp_path):
    def work(model):
        optimizer = sgd(model, lr=0.1)
        for i in range(5):
            optimizer.zero_grad()
            loss = loss_of(model(batch(i)))
            if i == 1:
                continue  # before the backward pass
            loss.backward()
            if i == 3:
                optimizer.zero_grad()
                continue  # after it
            optimizer.step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS) as recording:
        work(model)
    assert recording.steps_done == 3
    passes = by_hand(chain(), work)
    for step, i in enumerate((0, 2, 4)):
        assert_like(tmp_path / "run", [passes[i]], step)


def test_gradients_may_be_cleared_between_the_forward_and_the_backward_pass(tmp_path):
    def work(model):
        optimizer = sgd(model)
        for i in range(4):
            loss = loss_of(model(batch(i)))
            optimizer.zero_grad()
            loss.backward()
            if i != 1:
                optimizer.step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS) as recording:
        work(model)
    assert recording.steps_done == 3
    passes = by_hand(chain(), work)
    for step, i in enumerate((0, 2, 3)):
        assert_like(tmp_path / "run", [passes[i]], step)


def test_a_discriminator_forgets_what_the_loss_of_its_generator_brought(tmp_path):
    def work(critic):
        torch.manual_seed(5)
        generator = nn.Linear(8, 8)
        g_opt, d_opt = sgd(generator), sgd(critic)
        for i in range(3):
            fake = generator(batch(i))
            loss = critic(batch(10 + i)).mean() - critic(fake.detach()).mean()
            d_opt.zero_grad()
            loss.backward()
            d_opt.step()
            loss = critic(fake).mean()
            g_opt.zero_grad()
            loss.backward()
            g_opt.step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS) as recording:
        work(model)
    assert recording.steps_done == 3
    passes = by_hand(chain(), work)
    for step in range(3):
        assert_like(tmp_path / "run", passes[3 * step : 3 * step + 2], step)


def test_a_pass_that_a_second_loss_reaches_after_the_gradients_were_cleared_counts(tmp_path):
    """One forward pass and a backward pass for each task, as for gradient surgery."""

    def work(model):
        optimizer = sgd(model)
        for i in range(2):
            y = model(batch(i))
            taken = []
            for task in (y.square().mean(), y.abs().mean()):
                optimizer.zero_grad()
                task.backward(retain_graph=True)
                taken.append([p.grad.clone() for p in model.parameters()])
            for p, *grads in zip(model.parameters(), *taken, strict=True):
                p.grad = sum(grads)
            optimizer.step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS) as recording:
        work(model)
    assert recording.steps_done == 2
    for step, one in enumerate(by_hand(chain(), work)):
        assert_like(tmp_path / "run", [one], step)


def test_gradients_that_the_loop_adds_up_by_hand_are_measured_and_said(tmp_path):
    model = chain()
    optimizer = sgd(model)
    with (
        pytest.warns(RuntimeWarning, match="set others before an update"),
        stability.record(model, tmp_path / "run", LAYERS),
    ):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for i in range(3):
            loss_of(model(batch(i))).backward()
            for mine, p in zip(total, model.parameters(), strict=True):
                mine += p.grad
                p.grad = None
        for mine, p in zip(total, model.parameters(), strict=True):
            p.grad = mine
        optimizer.step()
    found = rows(tmp_path / "run", kind="weight_grad").rms
    assert sorted(found) == pytest.approx(sorted(map(rms, total)), rel=1e-6)


@pytest.mark.parametrize("to_none", [True, False])
def test_a_pass_is_thrown_away_before_the_first_update_too(tmp_path, to_none):
    def work(model):
        optimizer = sgd(model)
        for i in range(2):
            loss_of(model(batch(i))).backward()
            if i == 0:
                optimizer.zero_grad(set_to_none=to_none)
                continue
            optimizer.step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS) as recording:
        work(model)
    assert recording.steps_done == 1
    assert_like(tmp_path / "run", by_hand(chain(), work)[1:])


def test_gradients_that_autograd_grad_returns_belong_to_no_step(tmp_path):
    def work(model):
        optimizer = sgd(model)
        x = batch().requires_grad_()
        y = model(x)
        torch.autograd.grad(y.sum(), x, retain_graph=True)
        loss_of(y).backward()
        optimizer.step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS):
        work(model)

    def without(model):
        loss_of(model(batch().requires_grad_())).backward()

    assert_like(tmp_path / "run", by_hand(chain(), without))


def test_a_pass_whose_gradients_autograd_grad_returns_for_the_update_is_recorded(tmp_path):
    def work(model):
        optimizer, params = sgd(model), list(model.parameters())
        for i in range(2):
            grads = torch.autograd.grad(loss_of(model(batch(i))), params)
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad
            optimizer.step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS):
        work(model)
    for step, one in enumerate(by_hand(chain(), work)):
        found = rows(tmp_path / "run", kind="act", step=step)
        assert found.rms.tolist() == pytest.approx(joined([one]), rel=1e-6)
        assert not len(rows(tmp_path / "run", kind="grad", step=step))


def test_a_backward_pass_into_some_parameters_alone_is_recorded(tmp_path):
    def work(model):
        optimizer = sgd(model)
        for i in range(2):
            loss_of(model(batch(i))).backward(inputs=list(model.layers[0].parameters()))
            optimizer.step()
            optimizer.zero_grad()

    with stability.record(model := chain(), tmp_path / "run", LAYERS):
        work(model)
    for step, one in enumerate(by_hand(chain(), work)):
        assert_like(tmp_path / "run", [one], step)


def test_updates_without_a_pass_of_the_model_are_steps(tmp_path):
    """Evolution strategies: gradients that no backward pass has made."""
    model = chain()
    optimizer = sgd(model)
    with stability.record(model, tmp_path / "run", LAYERS) as recording:
        for i in range(3):
            with torch.no_grad():
                loss = loss_of(model(batch(i)))
            for p in model.parameters():
                p.grad = torch.full_like(p, i + 1.0)
            optimizer.step()
            recording.log(loss=loss)
    assert recording.steps_done == 3
    assert steps(tmp_path / "run").loss.notna().all()
    for step in range(3):
        updates = rows(tmp_path / "run", kind="update", step=step)
        assert updates.rms.tolist() == pytest.approx([0.1 * (step + 1)] * 6, rel=1e-5)


def test_the_first_step_of_sharpness_aware_minimization_is_one_step(tmp_path):
    def work(model):
        optimizer = sgd(model)
        for i in range(2):
            loss_of(model(batch(i))).backward()
            moves = [0.05 * p.grad for p in model.parameters()]
            with torch.no_grad():
                torch._foreach_add_(list(model.parameters()), moves)
            optimizer.zero_grad()
            loss_of(model(batch(i))).backward()
            with torch.no_grad():
                torch._foreach_sub_(list(model.parameters()), moves)
            optimizer.step()
            optimizer.zero_grad()

    with stability.record(model := chain(), tmp_path / "run", LAYERS) as recording:
        work(model)
    assert recording.steps_done == 2
    for step, one in enumerate(by_hand(chain(), work)[1::2]):
        assert_like(tmp_path / "run", [one], step)


def test_a_gradient_penalty_adds_its_own_backward_pass(tmp_path):
    def work(model):
        x = batch().requires_grad_()
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (loss_of(y) + slope.square().sum()).backward()
        sgd(model).step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS):
        work(model)
    passes = by_hand(chain(), work)
    found = rows(tmp_path / "run", kind="grad").rms.tolist()

    def right(model):  # retain_grad alone would add the gradient that autograd.grad returned
        outs = {}
        for i, layer in enumerate(model.layers):
            layer.register_forward_hook(lambda _, __, out, i=i: outs.update({i: out}))
        x = batch().requires_grad_()
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        total = loss_of(y) + slope.square().sum()
        return [rms(g) for g in torch.autograd.grad(total, list(outs.values()))]

    assert len(passes) == 1
    assert found == pytest.approx(right(chain()), rel=1e-6)


def test_the_passes_of_another_networks_loss_belong_to_no_step(tmp_path):
    """A GAN: the generator also runs, with gradients, when the discriminator is trained."""

    def work(generator):
        torch.manual_seed(5)
        critic = nn.Linear(8, 1)
        g_opt, d_opt = sgd(generator), sgd(critic)
        for i in range(3):
            d_opt.zero_grad()
            critic(generator(batch(10 + i)).detach()).mean().backward()
            d_opt.step()
            g_opt.zero_grad()
            (-critic(generator(batch(i))).mean()).backward()
            g_opt.step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS) as recording:
        work(model)
    assert recording.steps_done == 3
    passes = by_hand(chain(), work)[1::2]
    for step, one in enumerate(passes):
        assert_like(tmp_path / "run", [one], step)


def test_a_forward_pass_made_before_the_update_belongs_to_the_update_that_uses_it(tmp_path):
    """A loop that is one batch ahead."""

    def work(model):
        optimizer = torch.optim.SGD(model.layers[0].parameters(), lr=0.1)  # in no graph itself
        ahead = loss_of(model(batch(0)))
        for i in range(3):
            optimizer.zero_grad()
            ahead.backward()
            ahead = loss_of(model(batch(i + 1)))
            optimizer.step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS) as recording:
        work(model)
    assert recording.steps_done == 3
    for step, one in enumerate(by_hand(chain(), work)[:3]):
        assert_like(tmp_path / "run", [one], step)


def test_a_hundred_forward_passes_before_one_backward_pass_all_count(tmp_path):
    def work(model):
        sum(loss_of(model(batch(i))) for i in range(100)).backward()
        sgd(model).step()

    with stability.record(model := chain(), tmp_path / "run", LAYERS):
        work(model)
    assert_like(tmp_path / "run", by_hand(chain(), work))


def test_an_optimizer_that_is_made_anew_in_every_step_is_seen(tmp_path):
    model, other = chain(), chain()
    with stability.record(model, tmp_path / "run", LAYERS) as recording:
        for i in range(20):
            sgd(other).step()  # often gets the address of one that has gone
            loss_of(model(batch(i))).backward()
            sgd(model).step()
    assert recording.steps_done == 20


# What the loop may say.


def test_the_loop_may_say_itself_what_a_step_is(tmp_path):
    model = chain()
    optimizer = sgd(model)
    with stability.record(model, tmp_path / "run", LAYERS, steps="loop") as recording:
        for i in range(2):
            for j in range(3):
                loss_of(model(batch(3 * i + j))).backward()
                optimizer.step()
            recording.log(loss=float(i))
            recording.step()
    assert steps(tmp_path / "run").loss.tolist() == [0.0, 1.0]
    assert rows(tmp_path / "run", kind="act").numel.tolist() == [480] * 6


def test_the_loop_may_say_that_an_update_was_left_out(tmp_path):
    model = chain()
    optimizer = sgd(model)
    with stability.record(model, tmp_path / "run", LAYERS) as recording:
        for i in range(3):
            optimizer.zero_grad()
            loss_of(model(batch(i))).backward()
            if i == 1:
                recording.skip()
                continue
            optimizer.step()
            recording.step()  # says what is known already
    assert steps(tmp_path / "run").skipped.tolist() == [False, True, False]
    assert set(rows(tmp_path / "run", kind="update").step) == {0, 2}
    assert set(rows(tmp_path / "run", kind="grad").step) == {0, 1, 2}


@pytest.mark.parametrize("before", [True, False])
def test_a_value_logged_before_or_after_the_update_is_on_its_row(tmp_path, before):
    model = chain()
    optimizer = sgd(model)
    with stability.record(model, tmp_path / "run", LAYERS) as recording:
        for i in range(4):
            optimizer.zero_grad()
            loss = loss_of(model(batch(i)))
            if before:
                recording.log(loss=torch.tensor(float(i)))
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            recording.log(grad_norm=norm)
            optimizer.step()
            if not before:
                recording.log(loss=torch.tensor([i]).numpy())
    table = steps(tmp_path / "run")
    assert table.loss.tolist() == [0, 1, 2, 3]
    grads = rows(tmp_path / "run", kind="weight_grad")
    squares = (grads.rms**2 * grads.numel).groupby(grads.step).sum()
    assert table.grad_norm.tolist() == pytest.approx(squares.map(math.sqrt).tolist(), rel=1e-5)


def test_a_column_that_does_not_exist_is_warned_of_and_ends_nothing(tmp_path):
    model = chain()
    with (
        pytest.warns(RuntimeWarning, match="no column 'accuracy'"),
        stability.record(model, tmp_path / "run", LAYERS) as recording,
    ):
        loss_of(model(batch())).backward()
        recording.log(accuracy=0.5)
        sgd(model).step()
    assert "accuracy" in state(tmp_path / "run")["notes"][0]


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_a_logged_value_that_the_loop_changes_in_place_is_as_it_was(tmp_path, kind):
    model, total = chain(), kind([0.0])
    optimizer = sgd(model)
    with stability.record(model, tmp_path / "run", LAYERS) as recording:
        for i in range(3):
            loss_of(model(batch(i))).backward()
            optimizer.step()
            total += i + 1
            recording.log(loss=total)
            total[:] = 0
    assert steps(tmp_path / "run").loss.tolist() == [1, 2, 3]


def test_values_that_are_no_numbers_are_said_and_end_nothing(tmp_path):
    odd = [10**400, "x", torch.ones(2), [], 1j]
    values = [True, *odd, np.float32(2)]
    model = chain()
    optimizer = sgd(model)
    with (
        pytest.warns(RuntimeWarning),
        stability.record(model, tmp_path / "run", LAYERS) as recording,
    ):
        for i, value in enumerate(values):
            loss_of(model(batch(i))).backward()
            optimizer.step()
            recording.log(loss=value, spike=1, tokens=np.int64(3), skipped=None, record_s=None)
    found = steps(tmp_path / "run")
    assert found.loss.dropna().tolist() == [1.0, 2.0]
    assert found.spike.all() and (found.tokens == 3).all() and not found.skipped.any()
    assert state(tmp_path / "run")["status"] == "completed"
    notes = " ".join(state(tmp_path / "run")["notes"])
    assert all(f"{type(value).__name__} is not read as one number" in notes for value in odd)
    assert "no column 'skipped'" in notes


def test_a_pass_that_is_not_finite_takes_no_value_of_the_update_after_it(tmp_path):
    model = chain()
    optimizer = sgd(model)
    with stability.record(model, tmp_path / "run", LAYERS) as recording:
        for i in range(4):
            loss = loss_of(model(batch(i) * (math.nan if i == 1 else 1.0)))
            recording.log(loss=loss)
            if torch.isfinite(loss):
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    found = steps(tmp_path / "run")
    assert found.skipped.tolist() == [False, True, False, False]
    assert found.loss.notna().tolist() == [True, False, True, True]


# Loops without an optimizer, and optimizers inside the backward pass.


@pytest.mark.parametrize("in_data", [True, False])
def test_a_loop_that_updates_the_weights_itself_is_recorded(tmp_path, in_data):
    def work(model):
        for i in range(3):
            loss_of(model(batch(i))).backward()
            for p in model.parameters():
                if in_data:
                    p.data -= 0.1 * p.grad
                else:
                    with torch.no_grad():
                        p -= 0.1 * p.grad
                p.grad = None

    with stability.record(model := chain(), tmp_path / "run", LAYERS) as recording:
        work(model)
    assert recording.steps_done == 3
    passes = by_hand(chain(), work)
    for step, one in enumerate(passes):
        assert_like(tmp_path / "run", [one], step)
    updates, grads = (rows(tmp_path / "run", kind=kind) for kind in ("update", "weight_grad"))
    assert updates.rms.tolist() == pytest.approx((0.1 * grads.rms).tolist(), rel=1e-3)


def test_a_loop_that_clears_before_the_backward_pass_and_freezes_is_recorded(tmp_path):
    def work(model):
        for i in range(3):
            losses = [loss_of(model(batch(i)))]
            model.zero_grad()
            losses[0].backward()
            if i == 1:
                model.layers[1].requires_grad_(False)
                loss_of(model(batch(9))).backward()
            for p in model.parameters():
                if p.grad is not None:
                    p.data -= 0.1 * p.grad

    with stability.record(model := chain(), tmp_path / "run", LAYERS) as recording:
        work(model)
    assert recording.steps_done == 3
    passes = by_hand(chain(), work)
    for step, several in enumerate((passes[:1], passes[1:3], passes[3:])):
        assert_like(tmp_path / "run", several, step)
    assert rows(tmp_path / "run", kind="update").groupby("step").size().tolist() == [6, 4, 4]


@pytest.mark.parametrize("kinds", [["act", "grad", "weight", "weight_grad"], ["grad"]])
def test_one_pass_at_init_is_recorded(tmp_path, kinds):
    def work(model):
        loss_of(model(batch())).backward()

    with stability.record(model := chain(), tmp_path / "run", LAYERS, kinds=kinds):
        work(model)
    (one,) = by_hand(chain(), work)
    found = rows(tmp_path / "run", kind="grad").rms.tolist()
    assert found == pytest.approx(joined([one], grads=True), rel=1e-6)
    assert set(rows(tmp_path / "run").kind) == set(kinds)
    assert state(tmp_path / "run")["status"] == "completed"


def test_a_forward_pass_alone_is_recorded(tmp_path):
    model = chain()
    with stability.record(model, tmp_path / "run", LAYERS):
        model(batch())
    assert rows(tmp_path / "run", kind="act").numel.tolist() == [160] * 3


def test_optimizers_that_step_inside_the_backward_pass_are_recorded(tmp_path):
    model = chain()
    plain = chain()
    own = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(p):
        own[p].step()
        own[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)

    def work(model):
        for i in range(3):
            loss_of(model(batch(i))).backward()

    with stability.record(model, tmp_path / "run", LAYERS) as recording:
        work(model)
    assert recording.steps_done == 3
    optimizer = sgd(plain)
    with stability.record(plain, tmp_path / "plain", LAYERS):
        for i in range(3):
            optimizer.zero_grad()
            loss_of(plain(batch(i))).backward()
            optimizer.step()
    found, right = (rows(tmp_path / n).drop(columns="run") for n in ("run", "plain"))
    pd.testing.assert_frame_equal(found, right)


# Gradient scalers and clipping.


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("told", [True, False])
def test_a_gradient_scaler_is_divided_out_and_its_skips_are_seen(tmp_path, fused, unscale, told):
    def train(folder, scaler, bad):
        model = chain()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        options = {"loss_scale": scaler.get_scale} if told else {}
        with stability.record(model, folder, LAYERS, **options):
            for step in range(4):
                x = batch(step)
                if step in bad:
                    x[0, 0, 0] = float("inf")
                scaler.scale(loss_of(model(x))).backward()
                if unscale:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    train(tmp_path / "scaled", scaler, bad=(1, 3))
    train(tmp_path / "plain", torch.amp.GradScaler("cpu", enabled=False), bad=())
    assert steps(tmp_path / "scaled").skipped.tolist() == [False, True, False, True]
    for kind in ("act", "grad", "weight_grad", "update"):
        found, right = (
            rows(tmp_path / n, kind=kind, step=0).rms.tolist() for n in ("scaled", "plain")
        )
        assert found == pytest.approx(right, rel=1e-5), kind
    assert set(rows(tmp_path / "scaled", kind="update").step) == {0, 2}
    norms = steps(tmp_path / "scaled")
    assert norms.clip_factor[0] == pytest.approx(1.0, rel=1e-5)
    assert norms.grad_norm[0] == pytest.approx(steps(tmp_path / "plain").grad_norm[0], rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_scaler_may_leave_out_the_update_of_one_of_two_optimizers(tmp_path, fused, first):
    model, scaler = chain(), torch.amp.GradScaler("cpu", init_scale=64.0)
    parts = [model.layers[:1], model.layers[1:]]
    optimizers = [torch.optim.AdamW(part.parameters(), fused=fused) for part in parts]
    with stability.record(model, tmp_path / "run", LAYERS):
        for i in range(3):
            scaler.scale(loss_of(model(batch(i)))).backward()
            if i == 1:
                model.layers[0].weight.grad[0, 0] = math.inf
            for optimizer in optimizers if first else optimizers[::-1]:
                scaler.step(optimizer)
            scaler.update()
            model.zero_grad()
    assert steps(tmp_path / "run").skipped.tolist() == [False, True, False]
    updates = rows(tmp_path / "run", kind="update").groupby("step").layer
    assert [sorted(set(layers)) for _, layers in updates] == [[0, 1, 2], [1, 2], [0, 1, 2]]


def test_gradients_are_those_before_clipping_and_both_norms_are_told(tmp_path):
    found = {}
    for name, limit in (("clipped", 1e-3), ("free", 1e9)):
        model = chain()
        optimizer = sgd(model)
        with stability.record(model, tmp_path / name, LAYERS):
            loss_of(model(batch())).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
        found[name] = rows(tmp_path / name, kind="weight_grad").rms.tolist()
    assert found["clipped"] == found["free"]
    row = steps(tmp_path / "clipped").iloc[0]
    assert row.grad_norm * row.clip_factor == pytest.approx(1e-3, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_of_16_bit_gradients_are_not_rounded(tmp_path, dtype):
    model = chain().to(dtype)
    optimizer = sgd(model, lr=0.0)
    with stability.record(model, tmp_path / "run", LAYERS):
        (model(batch().to(dtype)).float() * 1e4).square().sum().sqrt().backward()
        optimizer.step()
    assert steps(tmp_path / "run").clip_factor.tolist() == pytest.approx([1.0], rel=1e-6)


def test_the_factor_of_clipping_is_that_of_the_parameters_that_are_trained(tmp_path):
    model = chain()
    optimizer = torch.optim.SGD(model.layers[0].parameters(), lr=0.1)
    with stability.record(model, tmp_path / "run", LAYERS):
        loss_of(model(batch())).backward()
        optimizer.step()
    assert steps(tmp_path / "run").clip_factor[0] == pytest.approx(1.0, rel=1e-6)


def test_clipping_that_spreads_a_nan_does_not_move_the_first_bad_tensor(tmp_path):
    model = chain(depth=6)

    class Break(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return grad * float("nan")

    model.layers[3].register_forward_pre_hook(lambda _, args: Break.apply(args[0]))
    optimizer = sgd(model)
    with stability.record(model, tmp_path / "run", LAYERS) as recording:
        loss_of(model(batch())).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    bad = recording.first_bad
    assert (bad["layer"], bad["kind"], bad["site"]) == (2, "grad", "resid_post")
    assert rows(tmp_path / "run", kind="weight_grad", layer=5).nonfinite.tolist() == [0, 0]


def test_the_first_bad_tensor_is_that_which_ran_first_children_before_parents(tmp_path):
    class Block(nn.Module):
        def __init__(self, breaks):
            super().__init__()
            self.wo, self.wi = nn.Linear(8, 8), nn.Linear(8, 8)  # registered the other way round
            self.breaks = breaks

        def forward(self, x):
            return x + self.wo(self.wi(x) * (float("inf") if self.breaks else 1.0))

    model = nn.Module()
    model.layers = nn.ModuleList(Block(i == 1) for i in range(3))
    model.forward = lambda x: model.layers[2](model.layers[1](model.layers[0](x)))
    with stability.record(model, tmp_path / "run", r"layers\.(\d+)(?:\.(wi|wo))?") as recording:
        model.layers[0](model.layers[0](batch()))
        loss_of(model(batch())).backward()
        sgd(model).step()
    bad = recording.first_bad
    assert (bad["layer"], bad["sublayer"], bad["kind"]) == (1, "wo", "act")


@pytest.mark.parametrize("how", ["break", "raise", "exit", "continue"])
@pytest.mark.parametrize("backward", [True, False])
def test_what_led_to_a_loss_at_which_the_loop_stops_is_written(tmp_path, how, backward):
    model = chain()
    optimizer = sgd(model)
    raised = {"raise": ValueError, "exit": SystemExit}.get(how)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            with stability.record(model, tmp_path / "run", LAYERS, every=10, ring=3) as recording:
                for step in range(7):
                    optimizer.zero_grad()
                    x = batch(step)
                    if step == 4:
                        x[0, 0, 0] = float("nan")
                    loss = loss_of(model(x))
                    if backward:
                        loss.backward()
                    if not math.isfinite(loss.item()):
                        if how == "break":
                            break
                        if how == "continue":
                            continue
                        raise raised()
                    if not backward:
                        loss.backward()
                    optimizer.step()
        except (ValueError, SystemExit):
            assert raised
    assert recording.first_bad == {
        "step": 4,
        "layer": 0,
        "sublayer": "block",
        "site": "resid_post",
        "kind": "act",
    }
    assert sorted(set(rows(tmp_path / "run").step)) == [0, 1, 2, 3, 4]
    assert state(tmp_path / "run")["first_bad"]["step"] == 4
    if how == "continue":
        assert steps(tmp_path / "run").skipped.tolist() == [False] * 4 + [True] + [False] * 2
    acts = rows(tmp_path / "run", kind="act", step=4)
    assert acts.numel.tolist() == [160] * 3
