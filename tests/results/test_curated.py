"""The curated numbers of a step are those of its rows, from a file or straight from a recorder."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stability.results import curated as module
from stability.results.curated import curated
from synthetic import GRADIENT, VARIANCE, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("sweep"), {"norm": "none", "depth": 5}, steps=21)


def rows(run: Path, step: int) -> pd.DataFrame:
    frame = pd.read_parquet(run / "layers.parquet")
    return frame[frame["step"] == step]


def test_the_numbers_follow_the_law_of_the_run(run: Path) -> None:
    found = curated(rows(run, 0), {"loss": 2.5, "val_loss": None, "lr": 1e-3})
    assert found["loss"] == 2.5 and found["lr"] == 1e-3
    assert not {"val_loss", "grad_norm"} & set(found)
    act = [math.sqrt(VARIANCE["none"](x)) for x in (1, 3, 5)]
    grad = [GRADIENT["none"](x, 5) for x in (1, 3, 5)]
    names = ("first", "middle", "last")
    assert [found[f"act_rms/{n}"] / found["act_rms/first"] for n in names] == pytest.approx(
        [a / act[0] for a in act]
    )
    assert [found[f"grad_rms/{n}"] / found["grad_rms/last"] for n in names] == pytest.approx(
        [g / grad[2] for g in grad]
    )
    assert found["grad_rms/last_over_first"] == pytest.approx(grad[2] / grad[0])
    assert found["nonfinite_share"] == 0


def test_columns_of_a_recorder_with_masks_give_the_same(run: Path) -> None:
    frame = rows(run, 20)
    columns = {n: list(frame[n]) for n in ("layer", "sublayer", "site", "kind", "numel")}
    hidden = frame["rms"].isna()
    columns["rms"] = np.ma.masked_array(frame["rms"].fillna(0.0), mask=hidden)
    columns["nonfinite"] = np.ma.masked_array(frame["nonfinite"].astype(int), mask=hidden)
    assert curated(columns, {}) == curated(frame, {})
    assert len(curated(columns, {})) == 8


def test_a_step_that_was_not_recorded_has_the_numbers_of_its_row_alone() -> None:
    row = dict.fromkeys(module.OF_STEPS, 1.5) | {"skipped": False}
    assert curated(None, row) == dict.fromkeys(module.OF_STEPS, 1.5)


def test_what_is_not_finite_is_nan_and_counted(tmp_path: Path) -> None:
    bad = write_run(tmp_path, {"depth": 4}, bad_step=7, bad_layer=3)
    found = curated(rows(bad, 7), {"loss": math.nan})
    assert math.isnan(found["loss"]) and math.isnan(found["act_rms/last"])
    assert math.isfinite(found["act_rms/middle"])
    frame = rows(bad, 7)
    assert found["nonfinite_share"] == frame["nonfinite"].sum() / frame["numel"].sum() > 0


def test_without_a_gradient_there_is_no_ratio(run: Path) -> None:
    frame = rows(run, 0)
    found = curated(frame[frame["kind"] == "act"], {})
    assert set(found) == {"act_rms/first", "act_rms/middle", "act_rms/last", "nonfinite_share"}


def test_a_gradient_that_vanished_gives_no_finite_ratio(run: Path) -> None:
    frame = rows(run, 0)
    frame.loc[(frame["kind"] == "grad") & (frame["layer"] == 0), "rms"] = 0.0
    assert math.isnan(curated(frame, {})["grad_rms/last_over_first"])
