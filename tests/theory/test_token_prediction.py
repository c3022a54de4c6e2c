"""The theory of who gets the gradient, against the probe that measures it."""

import numpy as np
import pandas as pd
import pytest

import tiny
from stability.config.token_positions import groups
from stability.model import build
from stability.parts.activations import GELU, SwiGLU
from stability.theory import token_prediction
from stability.theory.recursion import Net
from stability.theory.recursion import groups as covered
from stability.theory.sublayers import hidden
from stability.theory.token_prediction import WeightFlow
from stability.training import probes
from stability.training.passes import train_batch

SIZE = {
    **{"model.width": 256, "model.heads": 16, "model.context": 12, "depth": 2},
    **{"train.batch_size": 4, "record.probes": ["token_grad"]},
}


def compared(config, seeds):
    """Expected over mean measured squares of each item, and the standard error of the latter."""
    found = []
    for seed in range(seeds):
        own = config.changed({"seed": seed})
        built = build.build(own)
        batch = train_batch(built, 0)
        x, y = batch.x_BT.numpy(), batch.y_BT.numpy()
        taken = probes.Prober(built, "run").take(batch)
        predicted = token_prediction.predict(own, x, y, built.model.embed.wte.shape[0])
        measured = pd.DataFrame(taken)
        key = ["layer", "sublayer", "item"]
        both = measured.merge(predicted, on=key, suffixes=("", "_theory"))
        assert len(both) == len(measured) == len(predicted)
        found.append(both)
    rows = pd.concat(found)
    power = np.where(rows["item"].str.isdigit(), 1, 2)  # the probe gives squares, and norms
    rows = rows.assign(square=rows["value"] ** power, theory=rows["value_theory"] ** power)
    by = rows.groupby(["layer", "sublayer", "item"], sort=False)[["square", "theory"]]
    mean, error = by.mean(), by.std()["square"] / np.sqrt(seeds)
    nothing = mean["square"] <= 1e-12 * mean["square"].max()
    assert (mean["theory"][nothing] <= 1e-12 * mean["theory"].max()).all()
    kept = mean[~nothing]
    return pd.DataFrame(
        {"ratio": kept["theory"] / kept["square"], "error": error[~nothing] / kept["square"]}
    )


def assert_close(config, seeds=5, within=0.15, scores=0.35):
    """``scores`` for queries and keys, whose gradient is what others leave: 1/d weighs more."""
    found = compared(config, seeds)
    of_scores = found.index.get_level_values("item").str.match(r"[qk]\.")
    margin = np.where(of_scores, scores, within) + 4 * found["error"]
    off = found[np.abs(found["ratio"] - 1) > margin]
    assert off.empty, off.to_string()
    typical = found[~of_scores]["ratio"].median()
    assert abs(typical - 1) < within, typical


@pytest.mark.parametrize("norm", tiny.placements_of_one_stream())
@pytest.mark.parametrize("causal", [True, False])
def test_every_position_and_every_part_of_a_weight_gradient_is_predicted(norm, causal):
    assert_close(tiny.make_config(SIZE | {"model.causal": causal}, norm=norm))


@pytest.mark.parametrize(
    "changes",
    [
        {"model.position": "rope"},
        {"activation": "swiglu", "model.mlp_ratio": 2.5},
        {"model.sublayers": "mlp"},
        {"model.sublayers": "linear"},
        {"model.tie_embeddings": False},
        {"train.accumulate": 2},
        {"data.pad_share": 0.4},
    ],
    ids=str,
)
def test_every_shape_of_the_model_is_predicted(changes):
    assert_close(tiny.make_config(SIZE | changes))


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["pre", "post", "peri", "deepnorm"])
@pytest.mark.parametrize("causal", [True, False])
def test_at_larger_width_it_is_closer(norm, causal):
    # A tied head of this width predicts the symbol that it reads, so that delta and x are parallel.
    wide = {"model.width": 512, "model.heads": 32, "depth": 4, "model.tie_embeddings": False}
    wide |= {"model.causal": causal}
    assert_close(tiny.make_config(SIZE | wide, norm=norm), seeds=8, within=0.08, scores=0.2)


def test_the_square_over_a_group_is_the_sum_over_all_pairs_of_its_tokens():
    rng = np.random.default_rng(0)
    B, T, width = 3, 8, 5
    x, delta = rng.standard_normal((2, B * T, width))
    flow = WeightFlow(x @ x.T / width, width, delta @ delta.T / width, width)
    for part in groups(T).values():
        tokens = [b * T + t for b in range(B) for t in range(T)[part]]
        whole = sum(np.outer(delta[i], x[i]) for i in tokens)
        found = token_prediction._square(flow, part, B, T)
        assert found == pytest.approx((whole**2).sum())


def test_some_sequences_stand_for_all_where_they_are_alike():
    T, B = 4, 6
    C = np.kron(np.full((B, B), 0.3) + 0.7 * np.eye(B), np.ones((T, T)))
    few = C[: 2 * T, : 2 * T]
    for part in groups(T).values():
        known = token_prediction._square(WeightFlow(C, 7, C, 3), part, B, T)
        assert token_prediction._square(WeightFlow(few, 7, few, 3), part, B, T) == pytest.approx(
            known
        )


def test_too_long_sequences_have_positions_and_no_weights(monkeypatch):
    config = tiny.make_config(SIZE)
    x = np.tile(np.arange(12), (4, 1))
    monkeypatch.setattr(token_prediction, "MAX_TOKENS_ATTENTION", 12)
    items = token_prediction.predict(config, x, x, 256)["item"]
    assert items.str.isdigit().all()


def flows_of(changes):
    """A net of one block, what the sublayer reads and is handed, and what passes its weights."""
    config = tiny.make_config({"depth": 1, **changes}, norm="none")
    x = np.array([[1, 2, 3, 1]])
    (batch,) = covered(x, x + 1, True, joint=True)
    net = Net(config, 16)
    sites = {site.key: site.x for site in net.run(batch, 0)}
    sublayer = net.names[0]
    read, handed = sites[0, sublayer, "branch_in"], sites[0, sublayer, "branch_out"].G
    gains = net.gains(sublayer, 0, net.placement(0, sublayer))
    return gains, read, handed, token_prediction._flows(net, 0, sublayer, batch, read, handed)


def test_a_linear_branch_passes_on_what_it_reads_and_is_handed():
    _, x, G, flows = flows_of({"model.sublayers": "linear"})
    assert flows == {"linear": WeightFlow(x.C, 16, G, 16)}


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_the_weights_of_an_mlp_have_their_fans_and_the_gradient_behind_the_activation(activation):
    changes = {"model.sublayers": "mlp", "activation": activation, "model.mlp_ratio": 2.5}
    gains, x, G, flows = flows_of(changes)
    inside, slopes = hidden({"gelu": GELU(), "swiglu": SwiGLU()}[activation], gains, x.C)
    fans = {name: (flow.fan_in, flow.fan_out) for name, flow in flows.items()}
    assert fans.pop("mlp_out") == (40, 16)
    assert fans == dict.fromkeys(slopes, (16, 40))
    np.testing.assert_allclose(flows["mlp_out"].C, inside)
    np.testing.assert_allclose(flows["mlp_out"].G, G)
    std2 = gains["mlp_out"] / 40  # W2^T sums over the 16 features of the stream
    for name, slope in slopes.items():
        np.testing.assert_allclose(flows[name].C, x.C)
        np.testing.assert_allclose(flows[name].G, 16 * std2 * slope * G)


def test_the_weights_of_attention_are_square_and_only_the_last_reads_its_rows():
    _, x, G, flows = flows_of({})
    assert set(flows) == {"q", "k", "v", "attn_out"}
    assert all((flow.fan_in, flow.fan_out) == (16, 16) for flow in flows.values())
    assert all(flows[name].C is x.C for name in "qkv")
    assert flows["attn_out"].G is G
    assert not np.allclose(flows["attn_out"].C, x.C)


def test_the_rows_are_roots_of_squares_for_weights_and_squares_for_positions():
    config = tiny.make_config({"depth": 1, "model.sublayers": "linear"}, norm="none")
    x = np.array([[1, 2, 3, 1, 5, 6, 7, 8]] * 2)
    frame = token_prediction.predict(config, x, x - 1, 16)
    values = frame.set_index(["layer", "sublayer", "item"])["value"]
    assert set(frame["probe"]) == {"token_grad"} and not frame["saturated"].any()
    positions = [str(t) for t in range(8)]
    weights = [f"linear.{group}" for group in ("first", "quarter", "rest")]
    assert [key[2] for key in values.index] == [*positions, *positions, *weights]
    (batch,) = covered(x, x - 1, True, joint=True)
    sites = {site.key: site.x for site in Net(config, 16).run(batch, config.seed)}
    end, read = sites[0, "linear", "resid_post"].G, sites[0, "linear", "branch_in"].C
    for t in range(8):
        assert values[0, "linear", str(t)] == pytest.approx((end[t, t] + end[8 + t, 8 + t]) / 2)
    handed = sites[0, "linear", "branch_out"].G
    first = [0, 8]
    wanted = 16 * 16 * (read * handed)[np.ix_(first, first)].sum()
    assert values[0, "linear", "linear.first"] ** 2 == pytest.approx(wanted)


def test_one_long_sequence_has_weights_and_accumulation_looks_at_its_first_part(monkeypatch):
    monkeypatch.setattr(token_prediction, "MAX_TOKENS_ATTENTION", 4)
    x = np.arange(8).reshape(1, 8)
    config = tiny.make_config({"depth": 1, "model.sublayers": "linear"})
    frame = token_prediction.predict(config, x, x, 16)
    assert (~frame["item"].str.isdigit()).sum() == 3
    monkeypatch.undo()
    parts = tiny.make_config({"depth": 1, "model.sublayers": "linear", "train.accumulate": 2})
    four = np.concatenate([np.array([[1, 2, 3, 4]] * 2), np.array([[5, 6, 7, 8]] * 2)])
    found = token_prediction.predict(parts, four, four, 16)
    wanted = token_prediction.predict(config, four[:2], four[:2], 16)
    pd.testing.assert_frame_equal(found, wanted)
