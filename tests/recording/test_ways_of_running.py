"""Recording changes nothing, and rows do not depend on how the step is made."""

import pytest
import torch

from recorded_rows import assert_equal, by_key, drop
from slow_statistics import COUNTS
from stability.model import gpt
from stability.parts.precision import LossScale
from stability.recording.layer_log import LayerLog
from tiny import make_config, run


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_lesson_04_weights_and_losses_are_bitwise_the_same_with_recording_on_and_off(
    tmp_path, monkeypatch, dtype, threads
):
    changes = {"model.dropout": 0.2, "train.steps": 4, "train.clip": 0.5, "model.width": 32}
    config = make_config(changes, dtype=dtype, threads=threads)
    on = run(config, tmp_path / "on")
    monkeypatch.setattr(LayerLog, "is_written", lambda self, step: False)
    off = run(config, tmp_path / "off", prepare=lambda built: built.recorder.detach())
    assert len(on.layers)
    assert not len(off.layers)
    assert on.steps.loss.tolist() == off.steps.loss.tolist()
    assert on.steps.grad_norm.tolist() == off.steps.grad_norm.tolist()
    for p, q in zip(on.built.model.parameters(), off.built.model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("norm_type", ["layernorm", "batchnorm"])
@pytest.mark.parametrize("kept", [gpt.KEPT, 0.75])
def test_lesson_05_with_checkpointing_every_row_is_the_same(tmp_path, monkeypatch, norm_type, kept):
    """With one block in a segment, and with two (and a last one)."""
    monkeypatch.setattr(gpt, "KEPT", kept)
    assert gpt.segment(3) == (1 if kept > 1 else 2)
    changes = {"model.dropout": 0.2}
    plain, saved = (
        run(make_config(changes, depth=3, norm_type=norm_type, checkpointing=c), tmp_path / str(c))
        for c in (False, True)
    )
    assert_equal(by_key(plain), by_key(saved))
    assert plain.steps.loss.tolist() == saved.steps.loss.tolist()


def test_lesson_08_accumulation_gives_one_set_of_rows_equal_to_the_large_batchs(tmp_path):
    changes = {"train.batch_size": 6, "data.pad_share": 0.3, "optimizer": "sgd"}
    config = make_config(changes, dtype="fp64")
    whole = run(config, tmp_path / "1")
    parts = run(make_config(changes | {"train.accumulate": 4}, dtype="fp64"), tmp_path / "4")
    assert len(parts.layers) == len(whole.layers)
    unlike = parts.layers.site.eq("k.bias")  # its gradient is zero but for rounding
    assert_equal(by_key(drop(parts, unlike)), by_key(drop(whole, unlike)), rel=1e-9)
    assert parts.steps.loss.tolist() == pytest.approx(whole.steps.loss.tolist(), rel=1e-12)


def test_lesson_06_gradients_are_unscaled_on_both_sides_of_a_change_of_the_scale(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(LossScale, "growth_interval", 2)
    changes = {"train.steps": 5}
    plain = run(make_config(changes), tmp_path / "none")
    scaled = run(make_config(changes, loss_scale="dynamic"), tmp_path / "dynamic")
    assert scaled.steps.loss_scale.tolist() == [2.0**16, 2.0**16, 2.0**17, 2.0**17, 2.0**18]
    assert plain.steps.loss_scale.tolist() == [1.0] * 5
    one, other = by_key(scaled), by_key(plain)
    counts = [*COUNTS, "lost"]  # describe the tensor as its format held it
    one[counts], other[counts] = 0, 0
    assert_equal(one, other, rel=1e-12)
    assert scaled.steps.grad_norm.tolist() == pytest.approx(plain.steps.grad_norm.tolist())


def test_an_fp16_gradient_is_unscaled_and_shows_less_underflow_for_its_scale(tmp_path):
    changes = {"train.steps": 1, "train.batch_size": 8, "model.context": 32}
    plain, scaled, exact = (
        run(make_config(changes, depth=4, dtype=dtype, loss_scale=s), tmp_path / f"{dtype}{s}")
        for dtype, s in (("fp16", "none"), ("fp16", 1024), ("fp32", "none"))
    )
    where = {"kind": "grad", "layer": 0, "sublayer": "attn", "site": "branch_out"}
    rms = exact.value("rms", **where)
    assert scaled.value("rms", **where) == pytest.approx(rms, rel=0.01)
    assert scaled.value("subnormal", **where) < plain.value("subnormal", **where) / 10
