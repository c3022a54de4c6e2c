"""What is recorded is what happened."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

from by_hand import EQUATIONS, ByHand
from recorded_rows import KEY, poison
from slow_statistics import COUNTS, VALUES, token_rms_twin, twin
from stability.config.names import EMBED_LAYER, Key
from stability.model import build
from stability.model.gpt import loss_sum
from stability.recording.recorder import Recorder
from tiny import Ran, make_config, run

VARIANTS = [
    *({"norm": name} for name in EQUATIONS),
    {"norm": "peri", "norm_type": "rmsnorm", "model.tie_embeddings": False},
    {"model.sublayers": "linear", "model.bias": False},
    {"model.sublayers": "mlp", "activation": "swiglu", "norm": "post"},
    {"model.position": "rope", "model.causal": False},
    {"model.attention": "math"},
    {"data.pad_share": 0.4},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: " ".join(map(str, v.values())))
def test_every_row_is_what_a_model_written_by_hand_and_autograd_give(tmp_path, variant):
    changes = {k: v for k, v in variant.items() if "." in k} | {"train.steps": 1}
    over = {k: v for k, v in variant.items() if "." not in k}
    config = make_config(changes, dtype="fp64", **over)
    ran = run(config, tmp_path)
    wanted = slow_rows(config, ran)
    found = {tuple(row[c] for c in KEY[1:]): row for row in ran.layers.to_dict("records")}
    assert set(found) == set(wanted)
    for key, row in wanted.items():
        noise = 1e-17 if key[2] == "k.bias" else 0.0  # its gradient is zero but for rounding
        for name in COUNTS:
            assert noise or found[key][name] == row[name], (key, name)
        slack = {"mean": row["rms"], "var": row["rms"] ** 2}
        for name in (n for n in (*VALUES, "token_rms_median") if n in row):
            size = max(slack.get(name, 0.0), abs(row[name]))
            assert found[key][name] == pytest.approx(
                row[name], rel=1e-8, abs=1e-8 * size + noise, nan_ok=True
            ), (key, name)


def slow_rows(config: dict, ran: Ran) -> dict[tuple, dict[str, float]]:
    """Every row of step 0 by key: forward by hand, gradients by `torch.autograd.grad`."""
    weights = build.model_of(config, ran.info["data"]["vocab"]).weights()
    batch = ran.built.source.batch(
        0, config.train.batch_size, 8, config.seed, config.data.pad_share
    )
    x, y = map(torch.from_numpy, batch)
    model = ByHand(config, weights)
    loss = loss_sum(model(x), y) / (y >= 0).sum()
    shown = {k: t for k, t in model.seen.items() if k.name in ("scores", "attn_rows")}
    sites = {k: t for k, t in model.seen.items() if k not in shown}
    grads = torch.autograd.grad(loss, [*sites.values(), *weights.values()])
    site_grads = dict(zip(sites, grads, strict=False))
    weight_grads = dict(zip(weights, grads[len(sites) :], strict=True))
    rows, counted = {}, (y >= 0).flatten().numpy()
    for kind, tensors in (("act", sites), ("grad", site_grads)):
        for key, tensor in tensors.items():
            median = np.nanmedian(token_rms_twin(tensor.detach())[counted])
            rows[(*key, kind)] = twin(tensor.detach(), token_dim=1) | {"token_rms_median": median}
    after = ran.built.model.weights()
    updates = {k: after[k].detach() - w.detach() for k, w in weights.items()}
    plain = {("act", k): t for k, t in shown.items()}
    for kind, tensors in (("weight", weights), ("weight_grad", weight_grads), ("update", updates)):
        plain |= {(kind, k): t for k, t in tensors.items()}
    for (kind, key), tensor in plain.items():
        rows[(*key, kind)] = twin(tensor.detach())
    return rows


def test_padding_does_not_make_the_median_tokens_gradient_zero(tmp_path):
    """Behind the last token that counts a causal net's gradient is exactly zero."""
    changes = {"data.pad_share": 0.6, "train.steps": 1, "train.accumulate": 2}
    ran = run(make_config(changes, dtype="fp64"), tmp_path)
    deltas = ran.rows(kind="grad", site="resid_post", sublayer="mlp")
    assert (deltas.zeros > deltas.numel / 2).all()
    assert (deltas.token_rms_median > 0).all()


def test_every_row_is_there_exactly_once_on_every_recorded_step(tmp_path):
    ran = run(make_config({"record.every": 2, "train.steps": 6}, norm="peri"), tmp_path)
    assert not ran.layers.duplicated(KEY).any()
    sites, weights = ran.built.model.sites(), ran.built.model.weights()
    unseen = {k for k in sites if k.name in ("scores", "attn_rows")}
    wanted = {(*k, "act") for k in sites} | {(*k, "grad") for k in set(sites) - unseen}
    wanted |= {(*k, kind) for k in weights for kind in ("weight", "weight_grad", "update")}
    for step in (0, 2, 4, 5):
        rows = ran.rows(step=step)
        assert {tuple(row) for row in rows[KEY[1:]].to_numpy().tolist()} == wanted
    assert set(ran.layers.step) == {0, 2, 4, 5}
    assert set(ran.layers.run) == {ran.info["run"]}


def test_what_is_not_asked_for_is_not_recorded(tmp_path):
    changes = {"record.kinds": ["act", "weight"], "record.sites": ["resid_post", "scores"]}
    layers = run(make_config(changes), tmp_path).layers
    assert set(layers.kind) == {"act", "weight"}
    assert set(layers[layers.kind == "act"].site) == {"resid_post", "scores"}


def test_what_is_not_measured_is_null_and_not_nan(tmp_path):
    layers = run(make_config(), tmp_path).layers
    tokens = layers.kind.isin(["act", "grad"]) & ~layers.site.isin(["scores", "attn_rows"])
    for name in ("first_share", "token_rms_median"):
        assert layers[name].notna().equals(tokens)
    assert layers["lost"].notna().equals(layers.kind == "update")


def test_a_tied_table_is_one_row_with_its_full_gradient(tmp_path):
    ran = run(make_config({"train.steps": 1}, dtype="fp64"), tmp_path)
    rows = ran.rows(kind="weight_grad", site="wte")
    assert len(rows) == 1
    assert not len(ran.rows(kind="weight", site="head"))
    config = make_config({"model.tie_embeddings": False, "train.steps": 1}, dtype="fp64")
    model = build.model_of(config, 256)
    tied = build.model_of(make_config(dtype="fp64"), 256)
    with torch.no_grad():  # the same function, untied: its two gradients add up to the tied one
        for key, p in tied.weights().items():
            model.weights()[key].copy_(p)
        model.head.head.weight.copy_(tied.embed.wte)
    x, y = map(torch.from_numpy, ran.built.source.batch(0, 4, 8, 0))
    (loss_sum(model(x), y) / y.numel()).backward()
    full = model.embed.wte.grad + model.head.head.weight.grad
    assert rows.rms.item() == pytest.approx(full.square().mean().sqrt().item(), rel=1e-10)


def test_scores_of_a_long_context_are_shown_at_evenly_spread_queries(tmp_path):
    config = make_config({"model.context": 200, "train.batch_size": 1, "train.steps": 0})
    ran = run(config, tmp_path)
    queries = np.round(np.linspace(0, 199, 64)).astype(int)
    rows = ran.rows(layer=0, kind="act")
    assert rows[rows.site == "attn_rows"].numel.item() == 2 * 64
    assert rows[rows.site == "scores"].numel.item() == 2 * (queries + 1).sum()
    model = ByHand(config, {k: p.double() for k, p in ran.built.model.weights().items()})
    model(torch.from_numpy(ran.built.source.batch(0, 1, 200, 0)[0]))
    entropy = model.seen[Key(0, "attn", "attn_rows")][..., queries].mean().item()
    assert rows[rows.site == "attn_rows"]["mean"].item() == pytest.approx(entropy, rel=1e-5)


def test_an_update_that_rounds_to_nothing_is_counted_as_lost(tmp_path):
    changes = {"train.steps": 1, "train.lr": 1e-6}
    for dtype, share in (("fp64", 0.0), ("bf16", 1.0)):
        ran = run(make_config(changes, dtype=dtype), tmp_path / dtype)
        update = ran.rows(kind="update", site="norm.weight", layer=0, sublayer="mlp")
        assert update.lost.item() == share * update.numel.item()
        assert update.zeros.item() == share * update.numel.item()


def test_of_a_step_that_was_left_out_nothing_counts_as_lost(tmp_path):
    def prepare(built: build.Built) -> None:
        passes = iter(range(10**6))
        built.model.embed.register_forward_hook(
            lambda m, i, out: poison(out) if out.requires_grad and next(passes) == 1 else None
        )

    changes = {"train.steps": 3, "train.lr": 1e-6}
    ran = run(make_config(changes, dtype="bf16", on_nonfinite="skip"), tmp_path, prepare)
    assert ran.steps.skipped.tolist() == [False, True, False]
    updates = ran.rows(kind="update")
    left_out = updates.step == 1
    assert updates[left_out].lost.isna().all()
    assert (updates[left_out].zeros == updates[left_out].numel).all(), "the weights stayed"
    assert updates[~left_out].lost.notna().all()
    assert updates[~left_out].lost.sum() > 0


def test_rows_are_in_the_order_of_execution():
    built = build.build(make_config())
    x, y = map(torch.from_numpy, built.source.batch(0, 4, 8, 0))
    built.recorder.start()
    loss_sum(built.model(x), y).backward()
    built.recorder.gradients()
    rows = pd.DataFrame(built.recorder.take().rows(step=0))
    phases = rows.kind.replace({"weight_grad": "grad"}).tolist()
    assert [a for a, b in pairwise([*phases, None]) if a != b] == ["weight", "act", "grad"]
    forward = rows[rows.kind == "act"][["layer", "sublayer", "site"]].to_numpy().tolist()
    assert forward == [list(key) for key in built.model.sites()]
    backward = rows[rows.kind == "grad"].layer.tolist()
    assert backward == sorted(backward, reverse=True)
    assert (rows.layer.iloc[0], rows.layer.iloc[-1]) == (EMBED_LAYER, EMBED_LAYER)


class OneWeight(torch.nn.Module):
    def __init__(self, values):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(values))


def test_a_change_is_lost_if_it_was_asked_for_and_did_not_happen():
    """Of four entries one moves, one shall move by too little, two shall not move."""
    model = OneWeight([1.0, 1.0, 1.0, 0.0])
    key = Key(0, "mlp", "w")
    recorder = Recorder({}, {key: model.w}, kinds=["update"])
    recorder.start()
    recorder.gradients()
    before = recorder.snapshot()
    asked = torch.tensor([0.5, 1e-12, 0.0, 0.0], dtype=torch.float64)
    with torch.no_grad():
        model.w += asked.float()
    recorder.updates(before, lambda places: [asked for _ in places])
    rows = recorder.take().rows()
    assert rows["lost"].tolist() == [1]
    assert rows["zeros"].tolist() == [3]


def test_a_skipped_update_has_no_lost_changes():
    model = OneWeight([1.0, 1.0])
    recorder = Recorder({}, {Key(0, "mlp", "w"): model.w}, kinds=["update"])
    recorder.start()
    recorder.gradients()
    recorder.updates(recorder.snapshot(), None)
    assert recorder.take().rows()["lost"].mask.tolist() == [True]


@pytest.mark.parametrize(("value", "bad"), [(1.0, False), (float("nan"), True)])
def test_a_step_is_bad_if_an_entry_is_not_finite(value, bad):
    model = OneWeight([1.0, value])
    recorder = Recorder({}, {Key(0, "mlp", "w"): model.w}, kinds=["weight"])
    recorder.start()
    recorder.gradients()
    assert recorder.take().is_bad() is bad
