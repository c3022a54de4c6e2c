"""Figures of a recorded model with an encoder and a decoder."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch

import stability
from external_loops import rows
from stability.figures import (
    attention,
    depth_ratio,
    dynamic_range,
    gradient,
    modules,
    theory_scatter,
    update_ratio,
    variance,
    weight_gradient,
    weight_ratio,
)
from stability.results.curated import curated
from stability.results.frames import sweep_rows
from stability.results.stream import stacks_apart
from transformer_families import FAMILIES


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stacks")
    torch.manual_seed(0)
    model = FAMILIES["t5"].make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stability.record(model, folder / "run", "t5"):
        for _ in range(2):
            model(torch.randn(3, 5, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def numbers(sweep, module):
    found = sweep_rows(sweep, module.TABLE, module.COLUMNS, module.WHERE)
    return module.data(stacks_apart(found))


def values(found, **where):
    frame = found.frame[found.frame["when"].astype(str) == "at init"]
    for name, value in where.items():
        frame = frame[frame[name].astype(str) == value]
    return frame.sort_values("x")["value"].tolist()


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_each_stack_has_lines_of_its_own_numbers(sweep, stack):
    def wanted(column, kind, **where):
        return rows(sweep / "run", step=0, kind=kind, **where)[column].tolist()

    stream = {"sublayer": stack, "site": "resid_post"}
    assert values(numbers(sweep, variance), stack=stack) == pytest.approx(
        wanted("var", "act", **stream)
    )
    size = rows(sweep / "run", step=0, kind="grad", **stream)
    found = values(numbers(sweep, gradient), stack=stack, quantity="all tokens")
    assert found == pytest.approx((size["rms"] * size["numel"] ** 0.5).tolist())
    place = {"sublayer": f"{stack}.mlp", "site": "0.weight"}
    size = rows(sweep / "run", step=0, kind="weight_grad", **place)
    found = values(numbers(sweep, weight_gradient), stack=stack, weight="mlp.0")
    assert found == pytest.approx((size["rms"] * size["numel"] ** 0.5).tolist())
    ratio = [
        u / w
        for u, w in zip(
            wanted("rms", "update", **place), wanted("rms", "weight", **place), strict=True
        )
    ]
    assert values(numbers(sweep, update_ratio), stack=stack, weight="mlp.0") == pytest.approx(ratio)
    act = rows(sweep / "run", step=0, kind="act")
    act = act[act["sublayer"].str.startswith(stack) & ~act["sublayer"].str.endswith("final_norm")]
    act = act[~act["site"].isin(["scores", "attn_rows"])]
    found = values(numbers(sweep, dynamic_range), stack=stack, quantity="largest activation")
    assert found == pytest.approx(act.groupby("layer")["absmax"].max().tolist())


def test_attention_to_another_stack_has_a_line_of_its_own(sweep):
    found = numbers(sweep, attention)
    for name, sublayer in {
        "encoder": "encoder.attn",
        "decoder": "decoder.attn",
        "decoder, cross-attention": "decoder.cross_attn",
    }.items():
        recorded = rows(sweep / "run", step=0, sublayer=sublayer)
        for quantity, site, column in (
            ("largest logit", "scores", "absmax"),
            ("entropy", "attn_rows", "mean"),
        ):
            wanted = recorded[recorded["site"] == site][column].tolist()
            assert len(wanted) == 2
            assert values(found, stack=name, quantity=quantity) == pytest.approx(wanted)
    figure = attention.draw(found)
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [
        *("encoder", "decoder", "decoder, cross-attention"),
    ]
    plt.close(figure)


def test_all_stacks_decide_the_limits_of_an_axis(sweep):
    found = numbers(sweep, variance)
    assert (found.frame["runs"] == 1).all()
    figure = variance.draw(found)
    low, high = figure.axes[0].get_ylim()
    assert low < found.frame["value"].min() < found.frame["value"].max() < high
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["encoder", "decoder"]
    plt.close(figure)


def test_ratios_of_blocks_are_those_of_one_stack(sweep):
    found = sweep_rows(sweep, depth_ratio.TABLE, depth_ratio.COLUMNS, depth_ratio.WHERE)
    deeper = found.frame.assign(run="other", depth=found.frame["depth"] + 1)
    both = found.with_frame(pd.concat([found.frame, deeper], ignore_index=True))
    ratios = depth_ratio.data(stacks_apart(both))
    for stack in ("encoder", "decoder"):
        first, last = rows(sweep / "run", step=0, kind="act", sublayer=stack, site="resid_post")[
            "var"
        ]
        assert values(ratios, stack=stack, quantity="variance") == pytest.approx([last / first] * 2)


def test_every_figure_of_such_a_model_can_be_drawn(sweep):
    drawn = 0
    for module in modules().values():
        if module.TABLE == "layers" and module not in (depth_ratio, weight_ratio):
            found = numbers(sweep, module)
            theory = {"theory": found} if module is theory_scatter else {}
            plt.close(module.draw(found, **theory))
            drawn += 1
    assert drawn == 10


def test_rows_of_other_models_stay_as_they_are(sweep):
    found = sweep_rows(sweep, "layers")
    block = found.with_frame(found.frame.assign(sublayer="attn"))
    assert stacks_apart(block) is block
    empty = found.with_frame(found.frame.iloc[:0])
    assert stacks_apart(empty) is empty
    steps = sweep_rows(sweep, "steps")
    assert stacks_apart(steps) is steps


def test_curated_numbers_are_those_of_the_decoder(sweep):
    recorded = rows(sweep / "run", step=0)
    found = curated(recorded, {})
    outputs = recorded.query("kind == 'act' and sublayer == 'decoder' and site == 'resid_post'")
    assert [found["act_rms/first"], found["act_rms/last"]] == pytest.approx(outputs["rms"].tolist())
