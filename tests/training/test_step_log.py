"""What a run writes of a step."""

import pandas as pd
import pytest
import torch

from stability.results.parquet import Writer, run_metadata
from stability.training import step_log
from stability.training.step import StepResult
from stability.training.step_log import SpikeDetector, StepLog
from tiny import make_config


def test_steps_that_overlap_share_no_second(tmp_path, monkeypatch):
    """On a GPU a step is logged after the next one has begun."""
    config = make_config()
    metadata = run_metadata(config.plain(), "r")
    writers = {name: Writer(tmp_path, name, metadata) for name in ("layers", "steps")}
    log = StepLog(config, "r", writers, lambda row: None)
    values = torch.tensor([3.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    clock = iter([12.0, 14.0, 21.0])
    monkeypatch.setattr(step_log.time, "perf_counter", lambda: next(clock))
    for step, began in enumerate((10.0, 11.0, 20.0)):
        log.add(StepResult(step, None, values, None), None, began)
    for writer in writers.values():
        writer.close()
    rows = pd.read_parquet(tmp_path / "steps.parquet")
    assert rows["step_s"].tolist() == pytest.approx([2.0, 2.0, 1.0])


def test_a_spike_is_far_above_the_recent_medians():
    detector = SpikeDetector()
    losses = [3.0] * 12 + [4.1] + [3.0] * 5 + [3.9, 3.0]
    norms = [1.0] * 19 + [10.5]
    found = [detector.is_spike(a, b) for a, b in zip(losses, norms, strict=True)]
    assert [i for i, spike in enumerate(found) if spike] == [12, 19]


def test_a_step_is_a_spike_only_after_ten_finite_ones():
    detector = SpikeDetector()
    steps = [(3.0, 1.0)] * 9 + [(float("nan"), 1.0), (1e9, 1e9), (1e9, 1e9)]
    assert [detector.is_spike(*step) for step in steps] == [False] * 11 + [True]
    assert len(detector.recent) == 11
