"""The recursion against the real model, option by option."""

import numpy as np
import pandas as pd
import pytest
import torch

import tiny
from stability.model import build
from stability.model.gpt import loss_sum
from stability.parts.data import source
from stability.theory import prediction
from stability.theory.limits import NoTheory

KEY = ["layer", "sublayer", "site", "kind"]
SIZE = {"model.width": 128, "model.heads": 4, "model.context": 16, "dtype": "fp64", "depth": 3}


def config_of(changes=None, **choices):
    return tiny.make_config(SIZE | (changes or {}), **choices)


def measured(config, x_BT, y_BT):
    """Mean squares of activation and gradient at every site, by hooks written here."""
    model = build.model_of(config, 256).train()
    seen = {}
    for key, module in model.sites().items():
        if key.name not in ("scores", "attn_rows"):

            def keep(module, inputs, output, key=key):
                output.retain_grad()
                seen[key] = output

            module.register_forward_hook(keep)
    logits = model(torch.as_tensor(x_BT))
    (loss_sum(logits, torch.as_tensor(y_BT)) / int((y_BT >= 0).sum())).backward()
    return {
        (*key, kind): float(tensor.square().mean())
        for key, out in seen.items()
        for kind, tensor in (("act", out.detach()), ("grad", out.grad))
    }


def ratios(config, seeds, sequences=4):
    """Theory over measurement of every site's mean square, and its standard error."""
    sides = [], []
    for seed in range(seeds):
        data = source(config)
        x_BT, y_BT = data.batch(0, sequences, config.model.context, seed)
        frame = prediction.predict(config, x_BT, y_BT, 256)
        found = measured(config.changed({"seed": seed}), x_BT, y_BT)
        frame.index = frame[["layer", "sublayer", "site", "kind"]].itertuples(
            index=False, name=None
        )
        assert set(frame.index) >= set(found)
        sides[0].append(frame.loc[list(found), "var"])
        sides[1].append(list(found.values()))
    predicted, real = (np.array(side) for side in sides)
    nothing = (predicted == 0) & (real == 0)  # such as the gradient through a factor of 0
    predicted, real = (np.where(nothing, 1.0, side) for side in (predicted, real))
    spread = (real / predicted).std(0) / np.sqrt(seeds)
    return pd.DataFrame(
        {"ratio": predicted.mean(0) / real.mean(0), "error": spread}, index=list(found)
    )


def assert_close(config, seeds=6, within=0.08):
    found = ratios(config, seeds)
    off = found[np.abs(found["ratio"] - 1) > within + 4 * found["error"]]
    assert off.empty, off.to_string()


@pytest.mark.parametrize("norm", tiny.placements_of_one_stream())
@pytest.mark.parametrize("init", ["gpt2", "xavier"])
def test_every_placement_is_predicted_at_every_site(norm, init):
    assert_close(config_of(norm=norm, init=init))


@pytest.mark.parametrize("norm_type", tiny.options("norm_type"))
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_norm_type_is_predicted(norm, norm_type):
    assert_close(config_of({"depth": 2}, norm=norm, norm_type=norm_type), within=0.15)


@pytest.mark.parametrize(
    "changes",
    [
        {"model.causal": False},
        {"model.position": "rope"},
        {"model.position": "none", "model.bias": False},
        {"model.tie_embeddings": False},
        {"activation": "swiglu"},
        {"activation": "sigmoid", "model.mlp_ratio": 2.5},
        {"model.sublayers": "mlp"},
        {"model.sublayers": "linear"},
        {"init.embed_std": 0.5},
    ],
    ids=str,
)
def test_every_shape_of_the_model_is_predicted(changes):
    assert_close(config_of({"depth": 2} | changes), within=0.1)


@pytest.mark.parametrize(
    ("norm", "sublayers", "within"),
    [("none", "linear", 0.1), ("pre", "linear", 0.1), ("peri", "attn_mlp", 0.25)],
)
def test_the_variance_of_single_nets_deviates_as_far_as_is_said(norm, sublayers, within):
    """Nets of one batch, over which only the weights vary; 0.05 of it is the 200 seeds' own."""
    config = config_of({"model.width": 64, "model.sublayers": sublayers, "depth": 4}, norm=norm)
    x_BT, y_BT = source(config).batch(0, 4, 16, 0)
    frame = prediction.predict(config, x_BT, y_BT, 256).set_index(KEY)
    ends = [measured(config.changed({"seed": seed}), x_BT, y_BT) for seed in range(200)]
    for layer in (0, 3):
        key = (layer, "mlp" if sublayers == "attn_mlp" else "linear", "resid_post", "act")
        spread = np.log([end[key] for end in ends]).std()
        assert frame["spread"][key] == pytest.approx(spread, rel=within)


def test_how_far_a_net_deviates_is_said_only_where_it_is_known():
    x_BT, y_BT = source(config_of()).batch(0, 4, 16, 0)
    for norm, known in {"pre": set(), "none": set(), "post": {0.0}, "deepnorm": {0.0}}.items():
        frame = prediction.predict(config_of(norm=norm), x_BT, y_BT, 256)
        ends = frame[(frame["site"] == "resid_post") & (frame["layer"] >= 0)]
        assert set(ends.loc[ends["kind"] == "act", "spread"].dropna()) == known
        assert frame.loc[frame["kind"] == "grad", "spread"].isna().all()


def test_a_gradient_through_saturated_attention_is_marked():
    config = config_of({"depth": 12}, norm="none", init="kaiming")
    x_BT, y_BT = source(config).batch(0, 1, 16, 0)
    frame = prediction.predict(config, x_BT, y_BT, 256)
    marked = frame[frame["saturated"]]
    assert set(marked["kind"]) == {"grad"}
    last = marked["layer"].max()
    assert 0 < last < 12
    assert (frame[frame["kind"] == "grad"]["layer"] < last).sum() < len(marked)
    assert not prediction.predict(config_of(), x_BT, y_BT, 256)["saturated"].any()


def test_padding_does_not_count():
    config = config_of({"data.pad_share": 0.5, "depth": 2})
    data = source(config)
    x_BT, y_BT = data.batch(0, 4, 16, 0, pad_share=0.5)
    assert (y_BT < 0).any()
    frame = prediction.predict(config, x_BT, y_BT, 256)
    logits = frame[(frame["site"] == "branch_out") & (frame["sublayer"] == "head")]
    counted = (y_BT >= 0).sum()
    grad = logits[logits["kind"] == "grad"]["var"].item() * y_BT.size * 256
    assert grad == pytest.approx(1 / counted, rel=0.1)  # |P - Y|^2 is about 1 a counted token


def test_what_the_recursion_does_not_cover_is_said():
    x_BT = np.zeros((1, 4), dtype=np.int64)
    with pytest.raises(NoTheory, match="dropout"):
        prediction.predict(config_of({"model.dropout": 0.1}), x_BT, x_BT, 256)
    config = config_of()
    config.norm_type.build["_target_"] = "mine.Norm"
    with pytest.raises(NoTheory, match=r"mine\.Norm"):
        prediction.predict(config, x_BT, x_BT, 256)


@pytest.mark.parametrize(
    ("changes", "choices"),
    [
        ({"init.embed_std": 0.0}, {}),
        ({"init.embed_std": 1e-200, "model.sublayers": "linear"}, {"norm": "plain"}),
        ({"model.sublayers": "linear", "depth": 700}, {"norm": "none", "init": "lecun"}),
    ],
    ids=["no embedding", "underflow", "overflow"],
)
def test_where_numbers_end_there_is_no_spread_and_no_error(changes, choices):
    config = config_of(changes, **choices)
    x_BT, y_BT = source(config).batch(0, 2, 8, 0)
    with np.errstate(all="ignore"):
        frame = prediction.predict(config, x_BT, y_BT, 256)
    first = frame[(frame["kind"] == "act") & (frame["layer"] == -1)]
    assert (first["spread"].isna() | (first["var"] > 0)).all()
    assert not np.isinf(frame["spread"]).any()


def test_the_spread_does_not_depend_on_the_order_of_the_sequences():
    config = config_of({"model.sublayers": "linear"}, norm="pre")
    x_BT, y_BT = source(config).batch(0, 6, 16, 0)
    one, other = (prediction.predict(config, x[::step], y[::step], 256)["spread"]
                  for x, y, step in ((x_BT, y_BT, 1), (x_BT, y_BT, -1)))  # fmt: skip
    np.testing.assert_allclose(one, other, rtol=1e-9)
