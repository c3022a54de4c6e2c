"""Which runs are drawn where some are asked for."""

import pandas as pd
import pytest

from stability.results.atomic import Unreadable
from stability.results.runs_chosen import only
from stability.results.sweep_rows import SweepRows

RUNS = SweepRows(
    pd.DataFrame(
        {
            "run": list("abcd"),
            "norm": ["pre", "post", "pre", "post"],
            "depth": [6, 6, 24, 24],
            "train.lr": [1e-3, 1e-2, 1e-3, 1e-2],
            "model.causal": [True, False, True, False],
        }
    ),
    ("norm", "depth", "train.lr", "model.causal"),
)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ([], "abcd"),
        (["norm=pre"], "ac"),
        (["norm=pre,post", "depth=6"], "ab"),
        (["train.lr=0.001"], "ac"),
        (["train.lr=1e-2", "depth=24"], "d"),
        (["model.causal=true"], "ac"),
    ],
)
def test_runs_with_one_of_the_values_of_each_key_are_kept(asked: list[str], kept: str) -> None:
    assert "".join(only(RUNS, asked).frame["run"]) == kept


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("norm", "must be KEY=VALUE"),
        ("norm=", "must be KEY=VALUE"),
        ("nrom=pre", "what varies: norm, depth"),
        ("norm=peri", "norm is one of pre, post"),
        ("depth=six", "depth is one of 6, 24"),
    ],
)
def test_what_no_run_has_is_refused_with_what_there_is(asked: str, said: str) -> None:
    with pytest.raises(Unreadable, match=said):
        only(RUNS, [asked])
