"""Measures of number formats against numbers that were put in."""

import numpy as np
import pandas as pd
import pytest

from measure_rows import joined, measure, reason, rows, runs
from stability.claims.measures import Unmeasured, measures


def broken(*places, depth=3):
    """Activations (and gradients) of attention and MLP, not finite at some places.

    A place is (kind, layer, sublayer, site). The variance of an activation tells its place: 100 a
    layer, 10 for the MLP, 1 for the stream behind the sublayer.
    """
    found = []
    for kind in ("grad", "act"):
        for layer in range(depth):
            for tens, sublayer in enumerate(("attn", "mlp")):
                for ones, site in enumerate(("resid_pre", "resid_post", "branch_out")):
                    bad = int((kind, layer, sublayer, site) in places)
                    where = {"kind": kind, "layer": layer, "sublayer": sublayer, "site": site}
                    var = 100.0 * layer + 10 * tens + ones + 1000 * (kind == "grad")
                    found.append({**where, "nonfinite": bad, "var": var})
    return rows(*found)


@pytest.mark.parametrize(
    ("kind", "places", "first", "block"),
    [
        ("act", [(1, "mlp", "branch_out"), (2, "attn", "resid_pre")], "mlp branch_out", 2),
        ("act", [(1, "mlp", "resid_post"), (1, "mlp", "branch_out")], "mlp branch_out", 2),
        ("act", [(1, "mlp", "resid_pre"), (1, "attn", "resid_post")], "attn resid_post", 2),
        ("grad", [(1, "mlp", "branch_out"), (2, "attn", "resid_pre")], "attn resid_pre", 3),
        ("grad", [(1, "mlp", "resid_post"), (1, "mlp", "branch_out")], "mlp resid_post", 2),
        ("grad", [(0, "mlp", "resid_pre"), (0, "attn", "resid_post")], "mlp resid_pre", 1),
    ],
)
def test_the_first_overflow_is_the_first_in_the_order_of_execution(kind, places, first, block):
    other = "grad" if kind == "act" else "act"
    layers = broken(*((kind, *place) for place in places), (other, 0, "attn", "branch_out"))
    assert measure("first_overflow", layers=layers, kind=kind) == first
    assert measure("overflow_block", layers=layers, kind=kind) == block


def test_without_an_overflow_there_is_no_place_of_it():
    assert reason("first_overflow", layers=broken()) == "every act is finite"
    assert reason("overflow_block", layers=broken(), kind="grad") == "every grad is finite"


def test_the_variance_at_an_overflow_is_that_of_the_stream_which_the_sublayer_reads():
    layers = broken(("act", 2, "mlp", "branch_out"), ("grad", 0, "attn", "branch_out"))
    assert measure("variance_at_overflow", layers=layers) == 210.0
    layers = broken(("act", 1, "attn", "resid_post"), ("act", 1, "mlp", "resid_pre"))
    assert measure("variance_at_overflow", layers=layers) == 100.0
    unread = layers[layers["site"] != "resid_pre"]
    assert reason("variance_at_overflow", layers=unread) == "no act at resid_pre"


def test_an_overflow_is_compared_with_where_the_largest_of_normals_passes_the_maximum():
    size, sublayer = 20_000, 40
    embedding = {"layer": -1, "sublayer": "embed", "numel": size, "var": 0.25}
    others = [
        {
            "layer": layer,
            "sublayer": "linear",
            "numel": size,
            "nonfinite": int(layer + 1 >= sublayer),
        }
        for layer in range(60)
    ]
    # Another site and the way down are not finite earlier, and do not count.
    others += [{**others[-1], "layer": 3, "site": "branch_out"}]
    others += [{**others[-1], "layer": 3, "kind": "grad", "site": "resid_post"}]
    layers = rows({**embedding, "kind": "grad", "var": 9.0}, embedding, *others)
    law = sublayer / measure("overflow_over_law", layers=layers, runs=runs())
    rng = np.random.default_rng(0)
    expected = np.mean([np.abs(rng.standard_normal(size)).max() for _ in range(300)])
    assert 0.5 * expected * 1.5 ** (law / 2) == pytest.approx(65504, rel=0.01)


def test_scores_overflow_where_the_largest_of_normals_of_their_std_does():
    # g = 0.5 and Var(x) = 10^l, so scores have std 0.5 * 10^l. A layer has heads * tokens * T / 2 =
    # 4 * (100 / 50) * 8 / 2 = 32 scores, of which the largest is expected at 2.1 stds.
    reads = [
        {"layer": n, "sublayer": "attn", "site": "branch_in", "var": 10.0**n, "numel": 100}
        for n in range(8)
    ]
    other = {"layer": 0, "sublayer": "mlp", "site": "branch_in", "var": 1e9, "numel": 100}
    bad = {"layer": 6, "sublayer": "attn", "site": "scores", "nonfinite": 1}
    given = {"layers": rows(other, *reversed(reads), bad), "runs": runs()}
    assert measure("blocks_after_score_overflow", **given) == 6 - 5
    given["runs"] = runs({"finfo.max": 1.0 * 10**5})
    assert measure("blocks_after_score_overflow", **given) == 6 - 5
    given["runs"] = runs({"finfo.max": 1.2 * 10**5})
    assert measure("blocks_after_score_overflow", **given) == 6 - 6
    given["runs"] = runs({"finfo.max": 1e30})
    assert reason("blocks_after_score_overflow", **given).startswith("no score is predicted")


def first_bad(run="a", step=3, layer=2, sublayer="mlp", site="branch_out", kind="act", **more):
    place = {"step": step, "layer": layer, "sublayer": sublayer, "site": site, "kind": kind}
    return {"run": run, **{f"first_bad.{k}": v for k, v in place.items()}, **more}


ORDER = [
    {"step": 0, "kind": "update", "layer": 9},
    {"step": 1, "kind": "weight", "layer": 5},
    {"step": 1, "kind": "act", "layer": 4},
    {"step": 1, "kind": "act", "layer": 5, "sublayer": "attn"},
    {"step": 1, "kind": "act", "layer": 5, "sublayer": "mlp"},
    {"step": 1, "kind": "grad", "layer": 5, "sublayer": "mlp"},
    {"step": 1, "kind": "weight_grad", "layer": 5, "sublayer": "attn"},
    {"step": 1, "kind": "grad", "layer": 4},
    {"step": 1, "kind": "update", "layer": 0},
    {"step": 10, "kind": "weight", "layer": 0},
]


@pytest.mark.parametrize("place", range(len(ORDER) - 1))
def test_a_format_overflows_first_at_an_earlier_place_in_the_order_of_execution(place):
    early, late = ORDER[place], ORDER[place + 1]
    given = {"first": "fp16", "others": ["bf16"]}
    found = runs(first_bad(**early), first_bad("b", **late, dtype="bf16"))
    assert measure("overflows_first", runs=found, **given) == 1
    found = runs(first_bad(**late), first_bad("b", **early, dtype="bf16"))
    assert measure("overflows_first", runs=found, **given) == 0
    assert measure("overflows_first", runs=runs(first_bad(), first_bad(dtype="bf16")), **given) == 0


def test_a_format_overflows_first_only_before_all_others():
    early, late = first_bad(step=3), first_bad("b", step=4, dtype="bf16")
    third = first_bad("c", step=2, dtype="fp32")
    given = {"first": "fp16", "others": ["bf16", "fp32"]}
    assert measure("overflows_first", runs=runs(early, late, third), **given) == 0
    third["first_bad.step"] = None
    assert measure("overflows_first", runs=runs(early, late, third), **given) == 1
    early["first_bad.step"] = None
    assert reason("overflows_first", runs=runs(early, late, third), **given) == "fp16 stays finite"


def test_a_first_bad_place_is_named_with_its_block_from_one():
    bad, good = runs(first_bad()), runs()
    said = "step 3, block 3, mlp branch_out act"
    assert measure("first_bad_place", runs=bad) == said
    assert measure("first_bad_place", runs=good) == "finite for 20 steps"
    assert measure("first_bad_step", runs=bad) == 3
    assert measure("first_bad_step", runs=good) == 20
    assert measure("largest_number", runs=good) == 65504


def test_lost_updates_are_a_share_of_all_entries():
    counts = [(4, 1, "update"), (12, 3, "update"), (100, 50, "weight")]
    layers = rows(*({"kind": kind, "numel": n, "lost": lost} for n, lost, kind in counts))
    assert measure("lost_share", layers=layers) == pytest.approx(4 / 16)
    exact = rows({"run": "b", "kind": "update", "numel": 32, "lost": 0})
    both = runs({"dtype": "bf16"}, {"run": "b", "dtype": "fp32"})
    given = {"layers": joined([layers, exact]), "runs": both}
    found = measure("lost_share_ratio", **given, of="bf16", to="fp32")
    assert found == pytest.approx((4 / 16) / (1 / 32))  # a count of 0 is taken as 1
    assert reason("lost_share_ratio", **given, of="fp64", to="fp32") == "no updates in fp64"


def test_of_two_bad_gradients_of_one_block_the_mlps_comes_first():
    def first(a, b):
        bad = pd.DataFrame({"dtype": ["fp16", "bf16"], "run": ["a", "b"]})
        bad["first_bad.step"], bad["first_bad.layer"], bad["first_bad.kind"] = 0, 3, "grad"
        bad["first_bad.sublayer"] = [a, b]
        return measures()["overflows_first"](runs=bad, first="fp16", others=["bf16"])

    assert first("mlp", "attn") == 1
    assert first("attn", "mlp") == 0


def test_a_run_that_is_missing_among_formats_is_a_seed_left_out():
    runs = pd.DataFrame({"run": ["a"], "dtype": ["fp16"], "status": ["diverged"]})
    with pytest.raises(Unmeasured, match="no run with dtype = bf16"):
        measures()["overflows_first"](runs=runs, first="fp16", others=["bf16"])
