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


class Table:
    """A writer that keeps what it is told."""

    def __init__(self):
        self.rows, self.flushes, self.kept = [], 0, None

    def append(self, rows):
        self.rows.append(rows)

    def flush(self):
        self.flushes += 1

    def keep(self, steps):
        self.kept = steps


def log_of(changes, report=lambda row: None):
    config = make_config(changes)
    tables = {"layers": Table(), "steps": Table()}
    return StepLog(config, "r", tables, report), tables


def result_of(step):
    return StepResult(step, None, torch.tensor([3.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]), None)


def test_a_row_tells_the_tokens_before_the_step_and_the_rate_of_its_update():
    log, tables = log_of({"train.steps": 4, "train.lr": 0.5, "train.schedule": "linear"})
    for step in range(3):
        log.add(result_of(step), 2.5 if step == 2 else None, 0.0)
    rows = tables["steps"].rows
    assert [row["tokens"] for row in rows] == [[0], [4 * 8], [2 * 4 * 8]]
    assert [row["lr"] for row in rows] == [[0.5], [0.375], [0.25]]
    assert [row["val_loss"] for row in rows] == [[None], [None], [2.5]]
    assert [row["record_s"] for row in rows] == [[0.0]] * 3


def test_a_pass_without_an_update_has_a_learning_rate_of_0():
    log, tables = log_of({"train.steps": 0})
    log.add(result_of(0), None, 0.0)
    assert tables["steps"].rows[0]["lr"] == [0.0]


def test_rows_go_to_disk_every_so_many_steps_or_seconds(monkeypatch):
    now = 100.0
    monkeypatch.setattr(step_log.time, "monotonic", lambda: now)
    log, tables = log_of({"record.flush_every": 5})
    flushed = []
    for done in range(1, 11):
        log.flush_if_due(done)
        flushed.append(tables["layers"].flushes)
    assert flushed == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2]
    now += step_log.FLUSH_SECONDS
    log.flush_if_due(11)
    assert tables["steps"].flushes == 2
    now += 1
    log.flush_if_due(12)
    log.flush_if_due(13)
    assert tables["steps"].flushes == 3


def test_a_run_that_resumes_drops_what_it_writes_again_and_a_last_step_that_is_last_no_more():
    log, tables = log_of({"record.every": 3})
    log.keep(8)
    assert list(tables["steps"].kept) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert list(tables["layers"].kept) == [0, 3, 6]


def test_progress_is_told_a_few_times_a_second_with_the_speed(monkeypatch):
    told, now = [], 100.0
    monkeypatch.setattr(step_log.time, "monotonic", lambda: now)
    monkeypatch.setattr(step_log.time, "perf_counter", lambda: now)
    log, _ = log_of({"train.steps": 9}, told.append)
    for step in range(4):
        now += step_log.REPORT_SECONDS / 2
        log.add(result_of(step), None, 0.0)
    assert [row["step"] for row in told] == [0, 3]
    seconds = 3 * step_log.REPORT_SECONDS / 2
    assert told[-1] == {
        "step": 3,
        "steps": 9,
        "loss": 3.0,
        "grad_norm": 1.0,
        "val_loss": None,
        "tokens_per_s": pytest.approx(4 * 8 / (seconds / 3)),
    }
