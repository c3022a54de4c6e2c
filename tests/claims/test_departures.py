"""Runs are compared with what their experiment plans."""

import pandas as pd
import pytest
import yaml

from stability.claims.departures import departures, planned
from stability.config import folders


def test_the_plan_of_an_experiment_has_its_keys_its_grid_and_the_default_size(tmp_path):
    file = tmp_path / "q.yaml"
    node = {
        "name": "q", "depth": 6, "model": {"width": 128}, "record": {"every": 3}, "claim": {},
        "hydra": {"sweeper": {"params": {"norm": "pre,none", "seed": "range(3)", "init": "gpt2"}}},
    }  # fmt: skip
    file.write_text(yaml.safe_dump(node))
    plan = planned(file)
    assert plan["depth"] == [6] and plan["model.width"] == [128]
    assert (plan["model.context"], plan["dtype"]) == ([64], ["fp32"])
    assert (plan["norm"], plan["seed"], plan["init"]) == (
        ["pre", "none"],
        ["0", "1", "2"],
        ["gpt2"],
    )
    assert not {"name", "record.every", "claim"} & set(plan)
    del node["hydra"]
    file.write_text(yaml.safe_dump(node))
    assert planned(file) == {}


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"seed": ["0", "1"], "train.lr": ["1e-3"], "flag": ["true"], "nowhere": [1]}, ""),
        ({"seed": ["0", "1", "2"]}, "seed=0,1 instead of 0,1,2"),
        (
            {"seed": ["0"], "train.lr": [3e-3]},
            "seed=0,1 instead of 0; train.lr=0.001 instead of 0.003",
        ),
        ({"empty": [1]}, ""),
    ],
)
def test_keys_with_other_values_are_named(plan, said):
    runs = pd.DataFrame({"seed": [0, 1], "train.lr": 1e-3, "flag": True, "empty": None})
    assert departures(runs, plan) == said


def test_the_plan_of_every_experiment_can_be_read():
    for file in folders.experiments().values():
        for values in planned(file).values():
            assert values
