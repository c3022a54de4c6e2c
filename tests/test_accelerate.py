"""A loop of accelerate, recorded: each number against plain hooks."""

import pytest
import torch

import stability
from external_loops import LAYERS, PlainHooks, assert_recorded, batch, chain, state, steps

accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def no_settings_of_an_earlier_test():
    yield
    accelerate.state.AcceleratorState._reset_state()
    accelerate.state.PartialState._reset_state()


def loop(model, begin, mixed="no", number=1):
    """Five batches, the last step with what is left; ``begin`` is given the prepared model."""
    accelerator = accelerate.Accelerator(
        cpu=True, mixed_precision=mixed, gradient_accumulation_steps=number
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    data = torch.cat([batch(i) for i in range(5)])
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    with begin(accelerator.unwrap_model(model)) as recording:
        for x in loader:
            with accelerator.accumulate(model):
                loss = model(x).square().mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.01)
                    recording.log(loss=loss, lr=optimizer.param_groups[0]["lr"])
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()


class Plain(PlainHooks):
    """In the place of a recording."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def log(self, **_):
        pass


@pytest.mark.parametrize("mixed", ["no", "bf16"])
@pytest.mark.parametrize("number", [1, 2])
def test_each_number_is_that_of_plain_hooks_and_the_training_stays_as_it_is(
    tmp_path, mixed, number
):
    plain = []

    def plainly(model):
        plain.append(Plain(model, [f"layers.{i}" for i in range(3)]))
        return plain[0]

    model, other = chain(), chain()
    loop(model, lambda m: stability.record(m, tmp_path / "run", LAYERS), mixed, number)
    accelerate.state.AcceleratorState._reset_state()
    loop(other, plainly, mixed, number)
    assert len(plain[0].steps) == (5 if number == 1 else 3)
    assert_recorded(tmp_path / "run", plain[0])
    weights = dict(other.named_parameters())
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
    found = steps(tmp_path / "run")
    assert (found.clip_factor < 1).all() and found.loss.notna().all()
    assert found.lr.tolist() == [0.1 / 2**i for i in range(len(found))]
    assert state(tmp_path / "run")["finfo"]["dtype"] == ("amp_bf16" if mixed == "bf16" else "fp32")
