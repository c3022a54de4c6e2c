"""Cells whose runs are stand-ins (`stub_job`), and a pool that executes them."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

from stability.config.knobs import Config, Train
from stability.sweep.grid import Cell
from stability.sweep.pool import Pool
from stability.sweep.worker import WorkerSettings

HERE = Path(__file__).parent
SETTINGS = WorkerSettings(trusted=(HERE,), execute="stub_job")


@dataclass
class StubConfig(Config):
    """A config whose run ends as ``end`` says, after steps of so many seconds."""

    end: str = "completes"
    step_s: float = 0.0


CONFIG = StubConfig(depth=1, device="cpu", n_jobs=1, train=Train(steps=2))


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self):
        self.starts, self.rows, self.ends, self.stopped = [], [], [], []

    def started(self, cell):
        self.starts.append(cell.run)

    def report(self, cell, row):
        self.rows.append((cell.run, row))

    def ended(self, cell, end):
        self.ends.append((cell.run, end))

    def stopping(self, runs):
        self.stopped.append(runs)


def cells(folder, *ends, **changes):
    """A cell for each way to end, named run0, run1, ..."""
    made = []
    for i, end in enumerate(ends):
        config = replace(CONFIG, end=end, **changes)
        made.append(Cell(config, {}, f"run{i}", f"end-{end}", folder / f"end-{end}_run{i}", ()))
    return made


def execute(made, workers=1, **options):
    """Run the cells; returns the pool and its observer."""
    observer = Recorder()
    runs = Pool([SETTINGS] * workers, observer, **options)
    runs.run(made)
    return runs, observer


def run_file(cell):
    return json.loads((cell.folder / "run.json").read_text())


def kinds(runs):
    return [end.kind for _, end in sorted(runs.ends.items())]


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
