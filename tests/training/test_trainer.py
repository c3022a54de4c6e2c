"""The loop: its rows, its outcomes, its numbers, bit for bit."""

import json
import math

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from by_hand import ByHand
from recorded_rows import poison
from stability.config.names import Key
from stability.model import build
from stability.model.gpt import loss_sum
from stability.model.optim import learning_rate
from stability.parts.precision import LossScale
from stability.results import parquet
from stability.training import checkpoint, job, passes, step_log
from stability.training.job import final_fields
from stability.training.outcome import Outcome
from tiny import Ran, make_config, run

TIMES = ["step_s", "record_s"]


def same_tables(one: Ran, other: Ran) -> None:
    pd.testing.assert_frame_equal(one.layers, other.layers)
    pd.testing.assert_frame_equal(one.steps.drop(columns=TIMES), other.steps.drop(columns=TIMES))


GOLDEN = {
    "loss": [4.159762111756, 4.189572828032, 4.182837809291, 4.157692760164, 4.093661033056],
    "grad_norm": [1.174037102593, 1.357809089775, 1.048490546988, 1.040711159190, 1.312735971562],
    "val_loss": [4.174680405718, 4.165553547390, 4.105247646985],
    "final_val_loss": 4.085289882338,
    "var": [2.211666807476, 2.070428667783, 2.223381663844, 2.632189586215, 2.426010451757],
}

# Numbers ----------------------------------------------------------------------------------------


def test_golden_numbers_of_a_tiny_run(tmp_path):
    """On the data that are the same everywhere; looser than bitwise for other processors."""
    changes = {"train.steps": 5, "train.lr": 0.01, "train.weight_decay": 0.1, "train.eval_every": 2}
    ran = run(make_config(changes, data="markov", dtype="fp64"), tmp_path)
    assert ran.info["parameters"] == 7744
    assert ran.steps.loss.tolist() == pytest.approx(GOLDEN["loss"], rel=1e-6)
    assert ran.steps.grad_norm.tolist() == pytest.approx(GOLDEN["grad_norm"], rel=1e-6)
    assert ran.steps.val_loss.dropna().tolist() == pytest.approx(GOLDEN["val_loss"], rel=1e-6)
    assert ran.info["final_val_loss"] == pytest.approx(GOLDEN["final_val_loss"], rel=1e-6)
    where = {"layer": 1, "sublayer": "mlp", "site": "resid_post", "kind": "act"}
    assert ran.rows(**where)["var"].tolist() == pytest.approx(GOLDEN["var"], rel=1e-6)


def test_losses_are_those_of_a_model_written_by_hand(tmp_path):
    changes = {"train.steps": 0, "train.eval_every": 1, "train.eval_batches": 2}
    config = make_config(changes | {"data.pad_share": 0.3}, dtype="fp64")
    ran = run(config, tmp_path)
    weights, source = build.model_of(config, 256).weights(), ran.built.source

    def loss_of(*batches) -> float:
        sums = []
        for x, y in batches:
            x, y = torch.from_numpy(x), torch.from_numpy(y)
            sums.append((loss_sum(ByHand(config, weights)(x), y), (y >= 0).sum()))
        total, count = map(sum, zip(*sums, strict=True))
        return (total / count).item()

    assert ran.steps.loss.item() == pytest.approx(loss_of(source.batch(0, 4, 8, 0, 0.3)))
    validation = loss_of(*(source.val_batch(i, 4, 8, 0.3) for i in range(2)))
    assert ran.steps.val_loss.item() == pytest.approx(validation)
    assert ran.info["final_val_loss"] == pytest.approx(validation)


@pytest.mark.parametrize("dtype", ["fp32", "amp_bf16", "fp16"])
def test_the_same_run_again_is_bitwise_the_same(tmp_path, dtype):
    changes = {"model.dropout": 0.2, "train.eval_every": 1}
    config = make_config(changes, dtype=dtype)
    one, other = (run(config, tmp_path / name) for name in "ab")
    same_tables(one, other)
    assert one.info["final_val_loss"] == other.info["final_val_loss"]


def test_another_seed_is_another_run(tmp_path):
    one, other = (run(make_config(seed=s), tmp_path / str(s)) for s in (0, 1))
    assert one.info["run"] != other.info["run"]
    assert not set(one.steps.loss) & set(other.steps.loss)


def test_training_learns(tmp_path):
    changes = {"train.steps": 150, "train.lr": 0.01, "record.every": 150, "train.batch_size": 8}
    ran = run(make_config(changes, data="markov"), tmp_path)
    assert ran.info["status"] == "completed"
    assert ran.info["learned"] is True
    assert ran.info["final_val_loss"] < ran.info["data"]["unigram_entropy"] - 0.3
    assert ran.info["final_val_loss"] > ran.info["data"]["entropy_rate"]


# Rows -------------------------------------------------------------------------------------------


def test_n_steps_are_n_updates_and_n_rows(tmp_path):
    changes = {"train.steps": 7, "record.every": 3, "train.eval_every": 2}
    config = make_config(changes | {"train.schedule": "cosine", "train.warmup_steps": 2})
    ran = run(config, tmp_path)
    steps = ran.steps
    assert steps.step.tolist() == list(range(7))
    assert steps.tokens.tolist() == [t * 4 * 8 for t in range(7)]
    assert steps.lr.tolist() == [learning_rate(config.train, t) for t in range(7)]
    assert steps.val_loss.notna().tolist() == [t % 2 == 0 for t in range(7)]
    assert steps.loss_scale.tolist() == [1.0] * 7
    assert not steps.skipped.any()
    assert ran.layers.step.unique().tolist() == [0, 3, 6]
    assert ran.layers[ran.layers.kind == "update"].step.unique().tolist() == [0, 3, 6]
    states = ran.built.optimizer.inner[0].state.values()
    assert {float(s["step"]) for s in states} == {7.0}


def test_every_row_before_a_checkpoint_is_on_disk_when_it_is_written(tmp_path, monkeypatch):
    saved, save = [], checkpoint.save

    def looking(state, path):
        steps = [
            parquet.read(path.parent, name)["step"].to_pylist() for name in ("steps", "layers")
        ]
        saved.append([sorted(set(found)) for found in steps])
        save(state, path)

    monkeypatch.setattr(checkpoint, "save", looking)
    changes = {"train.steps": 5, "train.checkpoint_every": 2, "record.flush_every": 1000}
    run(make_config(changes), tmp_path)
    assert saved == [[[0, 1]] * 2, [[0, 1, 2, 3]] * 2]


def test_the_last_step_is_recorded_wherever_it_falls(tmp_path):
    ran = run(make_config({"train.steps": 6, "record.every": 4}), tmp_path)
    assert ran.layers.step.unique().tolist() == [0, 4, 5]


def test_no_steps_are_one_recorded_pass_without_an_update(tmp_path):
    config = make_config({"train.steps": 0})
    ran = run(config, tmp_path)
    assert ran.info["status"] == "completed"
    assert ran.steps.step.tolist() == [0]
    assert set(ran.layers.kind) == {"act", "grad", "weight", "weight_grad"}
    start = build.model_of(config, 256)
    for p, q in zip(ran.built.model.parameters(), start.parameters(), strict=True):
        assert torch.equal(p, q)
    longer = run(make_config({"train.steps": 2}), tmp_path / "longer")
    kept = longer.layers[(longer.layers.step == 0) & (longer.layers.kind != "update")]
    kept = kept.reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, ran.layers, check_categorical=False)


def test_a_row_describes_the_weights_before_the_update_it_reports(tmp_path):
    ran = run(make_config({"train.steps": 3, "optimizer": "sgd"}, dtype="fp64"), tmp_path)
    rows = ran.rows(site="mlp_in", layer=1).pivot(index="step", columns="kind", values="mean")
    after = rows["weight"] + rows["update"]
    assert after[:2].tolist() == pytest.approx(rows["weight"][1:].tolist(), rel=1e-12)
    assert rows["update"].tolist() == pytest.approx((-1e-3 * rows["weight_grad"]).tolist())


def test_the_gradient_norm_is_that_of_all_parameters_before_clipping(tmp_path):
    changes = {"train.clip": 0.01, "optimizer": "sgd", "train.lr": 0.5}
    ran = run(make_config(changes, dtype="fp64"), tmp_path)
    squares = ran.layers.rms**2 * ran.layers.numel
    by_step = squares.groupby([ran.layers.step, ran.layers.kind]).sum() ** 0.5
    norms = by_step.unstack()
    assert ran.steps.grad_norm.tolist() == pytest.approx(norms["weight_grad"].tolist())
    assert (ran.steps.grad_norm > 0.01).all()
    assert ran.steps.clip_factor.tolist() == pytest.approx((0.01 / ran.steps.grad_norm).tolist())
    assert norms["update"].tolist() == pytest.approx([0.5 * 0.01] * 3)
    loose = run(make_config({"train.clip": 1e3}), tmp_path / "loose")
    assert (loose.steps.clip_factor == 1).all()


def test_lesson_11_each_row_is_there_once_and_reads_back_bit_for_bit(tmp_path):
    taken = []

    def prepare(built: build.Built) -> None:
        take = built.recorder.take

        def remember():
            taken.append(take())
            return taken[-1]

        built.recorder.take = remember
        with torch.no_grad():
            built.model.weights()[Key(0, "mlp", "mlp_in")][:] = math.nan

    ran = run(make_config(), tmp_path, prepare)
    (rows,) = (t.rows(run=ran.info["run"], step=0) for t in taken)
    assert len(ran.layers) == len(rows["kind"])
    assert not ran.layers.duplicated(["step", "layer", "sublayer", "site", "kind"]).any()
    assert ran.layers["var"].isna().any()
    table = pq.read_table(ran.folder / "layers.parquet")
    for name in ("mean", "var", "rms", "absmax", "nonfinite", "token_rms_median"):
        written = np.ma.masked_array(rows[name])
        read = table[name].combine_chunks()
        assert np.array_equal(np.ma.getmaskarray(written), read.is_null().to_numpy(False)), name
        kept = ~np.ma.getmaskarray(written)
        back = read.to_numpy(zero_copy_only=False)[kept]
        wanted = written.data[kept]
        assert back.astype(wanted.dtype).tobytes() == wanted.tobytes(), name


def test_a_folder_says_everything_about_its_run(tmp_path):
    config = make_config(dtype="fp16")
    ran = run(config, tmp_path / "norm-pre_1f3a9c2e")
    assert yaml.safe_load((ran.folder / "config.yaml").read_text()) == config.plain()
    batch = np.load(ran.folder / "batch0.npz")
    x, y = ran.built.source.batch(0, 4, 8, 0)
    assert np.array_equal(batch["x"], x)
    assert np.array_equal(batch["y"], y)
    metadata = pq.read_schema(ran.folder / "layers.parquet").metadata
    assert json.loads(metadata[b"stability.config"]) == config.plain()
    assert metadata[b"stability.run"].decode() == ran.info["run"]
    assert ran.info["finfo"]["max"] == 65504
    assert ran.info["finfo"]["smallest_subnormal"] == 2.0**-24
    assert ran.info["parameters"] == sum(p.numel() for p in ran.built.model.parameters())
    assert "completed" in (ran.folder / "run.log").read_text()
    tables = {"layers.parquet", "steps.parquet"}
    files = {"config.yaml", "run.json", "batch0.npz", "run.log"}
    assert {p.name for p in ran.folder.iterdir()} == files | tables


def test_progress_is_reported_while_it_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(step_log, "REPORT_SECONDS", 0.0)
    said: list[dict] = []
    job.execute(make_config(), tmp_path, said.append)
    assert [s["step"] for s in said] == [0, 1, 2]
    assert {"steps", "loss", "grad_norm", "tokens_per_s", "val_loss"} <= set(said[0])
    assert all(s["tokens_per_s"] > 0 for s in said)


def test_lesson_17_the_cost_of_recording_is_reported(tmp_path):
    ran = run(make_config({"record.every": 2, "train.steps": 5}), tmp_path)
    assert (ran.steps.record_s > 0).tolist() == [True, False, True, False, True]
    assert (ran.steps.step_s >= ran.steps.record_s).all()
    assert ran.info["record_seconds"] == pytest.approx(ran.steps.record_s.sum())


# Outcomes ---------------------------------------------------------------------------------------


def test_a_run_that_blows_up_has_diverged_and_keeps_its_rows(tmp_path):
    changes = {"optimizer": "sgd", "train.lr": 1e30, "train.steps": 20, "record.every": 5}
    ran = run(make_config(changes, norm="none"), tmp_path)
    assert ran.info["status"] == "diverged"
    assert ran.info["error"] is None
    at = ran.info["first_bad"]["step"]
    assert 0 < at < 19
    assert ran.info["steps_done"] == at
    assert ran.steps.step.tolist() == list(range(at + 1))
    assert ran.steps.loss[:at].notna().all()
    assert ran.steps.skipped.tolist() == [False] * at + [True]
    assert ran.value("nonfinite", **ran.info["first_bad"]) > 0
    assert all(p.isfinite().all() for p in ran.built.model.parameters())


@pytest.mark.parametrize("seed", [0, 1])
def test_fp16_stays_finite_in_pre_ln_at_depth_6(tmp_path, seed):
    changes = {"train.steps": 20, "record.every": 19, "model.width": 64, "model.context": 32}
    ran = run(make_config(changes, dtype="fp16", depth=6, seed=seed), tmp_path)
    assert ran.info["status"] == "completed"
    assert ran.steps.loss.notna().all()
    assert ran.layers.nonfinite.sum() == 0
    assert ran.steps.loss.iloc[-1] < ran.steps.loss.iloc[0]


def test_a_dynamic_loss_scale_skips_and_halves_until_the_gradient_fits(tmp_path, monkeypatch):
    monkeypatch.setattr(LossScale, "initial", 2.0**34)
    changes = {"train.steps": 24, "record.every": 3}
    ran = run(make_config(changes, dtype="fp16", loss_scale="dynamic"), tmp_path)
    skipped, scale = ran.steps.skipped.to_numpy(), ran.steps.loss_scale.to_numpy()
    assert skipped[:3].all()
    assert not skipped[-3:].any()
    assert (scale[1:] == np.where(skipped[:-1], scale[:-1] / 2, scale[:-1])).all()
    assert ran.steps.loss.notna().all()
    assert ran.info["status"] == "completed"
    updates = ran.layers[ran.layers.kind == "update"]
    moved = updates.groupby("step").absmax.max()
    assert ((moved == 0) == skipped[moved.index]).all()


def bad_gradients(built: build.Built) -> None:
    site = built.model.sites()[Key(1, "attn", "branch_out")]

    def hook(module, args, out):
        if out.requires_grad:
            out.register_hook(poison)

    site.register_forward_hook(hook, prepend=True)


@pytest.mark.parametrize("every", [1, 10])
def test_a_loss_scale_that_falls_below_one_is_divergence(tmp_path, monkeypatch, every):
    monkeypatch.setattr(LossScale, "initial", 4.0)
    changes = {"train.steps": 9, "record.every": every}
    ran = run(make_config(changes, loss_scale="dynamic"), tmp_path, bad_gradients)
    assert ran.info["status"] == "diverged"
    assert ran.steps.loss_scale.tolist() == [4.0, 2.0, 1.0]
    assert ran.steps.skipped.all()
    where = {"layer": 1, "sublayer": "attn", "site": "branch_out", "kind": "grad"}
    assert ran.info["first_bad"] == {"step": ran.info["first_bad"]["step"], **where}


def test_an_overflow_that_a_smaller_scale_avoids_is_still_named(tmp_path, monkeypatch):
    """The pass that looks for the first bad site must run at the scale that the step had."""
    monkeypatch.setattr(LossScale, "initial", 1.0)

    def prepare(built: build.Built) -> None:
        passes, factor = iter(range(100)), []

        def overflow_at_scale_one(grad):
            factor.append(7e4 / grad.abs().max().item())
            return grad * factor[0]

        def hook(module, args, out):
            if out.requires_grad and next(passes) >= 2:
                out.register_hook(overflow_at_scale_one)

        built.model.embed.resid_post.register_forward_hook(hook, prepend=True)

    changes = {"train.steps": 9, "record.every": 5, "model.position": "none"}
    ran = run(make_config(changes, dtype="fp16", loss_scale="dynamic"), tmp_path, prepare)
    assert ran.info["status"] == "diverged"
    where = {"layer": 0, "sublayer": "attn", "site": "resid_pre", "kind": "grad"}  # the same tensor
    assert ran.info["first_bad"] == {"step": 2, **where}


def test_a_validation_that_is_not_finite_is_divergence(tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "validate", lambda built: math.nan)
    ran = run(make_config(), tmp_path)
    assert ran.info["status"] == "diverged"
    assert "validation" in ran.info["outcome"]
    assert ran.info["final_val_loss"] is None, "as in run.json, for JSON has no NaN"


def test_learned_is_a_margin_below_the_unigram_entropy():
    def learned(val_loss: float | None) -> object:
        outcome = Outcome("completed", "completed", 3, final_val_loss=val_loss)
        return final_fields(outcome, unigram_entropy=3.0)["learned"]

    assert learned(2.69) is True
    assert learned(2.71) is False
    assert learned(None) is None
