"""The runs of a grid are dealt to shards that cost about the same."""

import random

import pytest

from planning import planned
from stability.sweep import grid
from stability.sweep.shards import cost, deal


def sums(costs, shards):
    return [sum(costs[run] for run in part) for part in deal(costs, shards)]


def test_a_grid_over_depth_gives_equal_shards():
    costs = [depth for _ in range(4) for depth in (6, 12, 24, 48)]
    assert sums(costs, 4) == [90] * 4


def test_the_shards_of_a_command_line_cost_the_same():
    words = ["norm=pre,post,peri,none", "depth=6,12,24,48", "name=s"]
    parts = [grid.waiting(planned(*words, f"shard={i}/4")) for i in (1, 2, 3, 4)]
    assert [len(part) for part in parts] == [4] * 4
    assert len({sum(cost(cell.config) for cell in part) for part in parts}) == 1


@pytest.mark.parametrize("seed", range(20))
def test_two_shards_differ_by_the_dearest_run_at_most(seed):
    draws = random.Random(seed)
    costs = [draws.choice([1, 6, 12, 24, 48, 96]) * draws.random() for _ in range(40)]
    shards = draws.randint(1, 50)
    dealt = deal(costs, shards)
    assert sorted(run for part in dealt for run in part) == list(range(40))
    loads = sums(costs, shards)
    assert max(loads) - min(loads) <= max(costs)
    assert max(loads) <= sum(costs) / shards + max(costs)


def test_each_command_deals_the_same():
    assert deal([2, 2, 1, 1, 1], 2) == deal([2, 2, 1, 1, 1], 2) == [[0, 2, 4], [1, 3]]


def test_without_cost_the_runs_are_dealt_by_number():
    assert deal([0, 0, 0, 0, 0], 2) == [[0, 2, 4], [1, 3]]
