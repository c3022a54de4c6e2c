"""Places in words, and the order of execution."""

import random

from stability.config.names import (
    BLOCK_SUBLAYERS,
    INNER_SUBLAYERS,
    KINDS,
    PHASES,
    SITE_ORDER,
    SITES,
    SUBLAYER_ORDER,
    Key,
    execution_key,
)


def test_a_place_is_said_in_one_way():
    row = {"step": 3, "layer": 2, "sublayer": "attn", "site": "scores", "kind": "act"}
    assert f"{Key.of(row)}" == str(Key(2, "attn", "scores")) == "layer 2, attn, scores"


def test_rows_sort_into_the_order_of_execution():
    wanted = [
        *(("weight", layer, "mlp", "resid_pre") for layer in (0, 1)),
        ("act", 0, "attn", "resid_pre"),
        ("act", 0, "attn", "resid_post"),
        ("act", 0, "mlp", "branch_in"),
        ("act", 1, "attn", "resid_pre"),
        ("grad", 1, "attn", "resid_pre"),
        ("grad", 0, "mlp", "branch_out"),
        ("grad", 0, "mlp", "branch_in"),
        ("weight_grad", 0, "mlp", "resid_pre"),
        ("grad", 0, "attn", "resid_post"),
        ("weight_grad", 0, "attn", "resid_pre"),
        *(("update", layer, "mlp", "resid_pre") for layer in (0, 1)),
    ]

    def when(row: tuple[str, int, str, str]) -> tuple[int, ...]:
        kind, layer, sublayer, site = row
        place = layer, SUBLAYER_ORDER.index(sublayer)
        return execution_key(kind, place, SITE_ORDER.index(site))

    mixed = random.Random(0).sample(wanted, len(wanted))
    assert mixed != wanted
    assert sorted(mixed, key=when) == wanted
    assert len({when(row) for row in wanted}) == len(wanted)


def test_the_orders_name_all_that_there_is():
    assert set(SITE_ORDER) == set(SITES)
    assert set(PHASES) == set(KINDS)
    assert {n for names in BLOCK_SUBLAYERS.values() for n in names} < set(SUBLAYER_ORDER)


def test_a_sublayer_is_inner_where_no_block_ends_with_it():
    assert {"attn"} == INNER_SUBLAYERS
    assert not INNER_SUBLAYERS & {names[-1] for names in BLOCK_SUBLAYERS.values()}
