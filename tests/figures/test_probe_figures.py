"""Figures of the probes: one for each, with the probe's numbers at the right place."""

from collections.abc import Sequence

import pandas as pd
import pytest

from stability import figures
from stability.config.knobs import PROBES
from stability.figures.drawing.select import CannotDraw
from stability.results.sweep_rows import SweepRows

ALL = figures.modules()
SHOWN = {p for m in ALL.values() if m.TABLE == "probes" for p in m.WHERE["probe"]}
DEPTH = 3
SUBLAYERS = ("attn", "mlp")

OVER_BLOCKS = {
    "lesion": {"rise": "rise"},
    "jacobian": {"sublayer": "sublayer", "branch": "branch"},
    "norm_sigma": {"norm": "norm", "norm.out": "norm.out"},
    "norm_jacobian": {"spectral": "spectral norm", "inverse_sigma": "1/sigma", "error": "error"},
    "token_cosine": {"act": "stream", "grad": "gradient"},
    "token_mean": {"norm": "norm"},
    "norm_bytes": {"norm": "norm"},
}
"""Probe -> item -> quantity."""


def rows_of(probe: str, cells: Sequence[tuple[int, str, str, float]]) -> SweepRows:
    """Rows of two placements, two seeds and steps 0 and 10; the value grows with all of them."""
    rows = [
        (f"{norm}{seed}", step, "completed", layer, sublayer, probe, item, value * (1 + seed), norm)
        for norm in ("pre", "post")
        for seed in range(2)
        for step in (0, 10)
        for layer, sublayer, item, value in cells
    ]
    names = ["run", "step", "status", "layer", "sublayer", "probe", "item", "value", "norm"]
    return SweepRows(pd.DataFrame(rows, columns=names), ("norm",))


def test_every_probe_has_a_figure() -> None:
    assert {*PROBES} == SHOWN


@pytest.mark.parametrize("probe", OVER_BLOCKS)
def test_a_number_of_a_sublayer_lies_between_its_block_and_the_one_before(probe: str) -> None:
    items = OVER_BLOCKS[probe]
    places = [(layer, s) for layer in range(DEPTH) for s in SUBLAYERS]
    cells = [(layer, s, i, 1.0 + layer) for layer, s in places for i in items]
    final = [(DEPTH, "head", next(iter(items)), 1e6)]
    module = ALL[probe]
    found = module.data(rows_of(probe, cells + final))
    frame = found.frame
    assert set(frame["quantity"]) == {*items.values()} and frame["value"].max() < 1e5
    first = frame[(frame["norm"] == "pre") & (frame["when"] == "at init")]
    first = first[first["quantity"] == next(iter(items.values()))].sort_values("x")
    assert list(first["x"]) == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    centre = 1.5 if probe in ("lesion", "token_cosine") else 2**0.5  # median, geometric mean
    assert list(first["value"]) == pytest.approx([centre * (1 + i // 2) for i in range(6)])
    panel = module.draw(found).axes[0]
    assert panel.get_xlim()[0] < 0.5 and panel.get_xlim()[1] > DEPTH


def test_the_rest_of_the_net_is_one_number_a_block() -> None:
    cells = [(layer, "block", "tail", 2.0) for layer in range(DEPTH)]
    cells += [(layer, s, "branch", 1.0) for layer in range(DEPTH) for s in SUBLAYERS]
    frame = ALL["jacobian"].data(rows_of("jacobian", cells)).frame
    tail = frame[(frame["quantity"] == "block to output") & (frame["norm"] == "pre")]
    assert sorted(set(tail["x"])) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("probe", ["linear_gain", "outer_product"])
def test_a_number_of_a_weight_has_a_panel_with_its_symbol(probe: str) -> None:
    names = {"attn": ("k", "q"), "mlp": ("mlp_in",)}
    cells = [(i, s, w, 1.0 + i) for i in range(DEPTH) for s in names for w in names[s]]
    found = ALL[probe].data(rows_of(probe, [*cells, (DEPTH, "head", "head", 9.0)]))
    assert list(found.frame["weight"].cat.categories) == ["$W_Q$", "$W_K$", "$W_1$"]
    assert set(found.frame["x"]) == {1, 2, 3}
    titles = [ax.get_title() for ax in ALL[probe].draw(found).axes[:3]]
    assert titles == ["$W_Q$", "$W_K$", "$W_1$"]


@pytest.mark.parametrize("probe", ["model_update", "output_change"])
def test_a_number_of_the_output_is_drawn_over_steps(probe: str) -> None:
    found = ALL[probe].data(rows_of(probe, [(DEPTH, "head", "change", 3.0)]))
    assert sorted(set(found.frame["x"])) == [0, 10]
    centre = 4.5 if probe == "model_update" else 3 * 2**0.5
    assert found.frame["value"].to_numpy() == pytest.approx(centre)
    assert ALL[probe].draw(found).axes[0].get_xlabel() == "step"


@pytest.mark.parametrize("probe", [*OVER_BLOCKS, "linear_gain", "model_update"])
def test_a_sweep_without_the_probe_is_told_how_to_record_it(probe: str) -> None:
    rows = rows_of("other", [(0, "attn", "q", 1.0)])
    with pytest.raises(CannotDraw, match=rf"record.probes=\[{probe}\]"):
        ALL[probe].data(rows)
