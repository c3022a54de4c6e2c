"""Cells whose runs are stand-ins (`stub_job`), and what a pool says of them."""

import json
from pathlib import Path

from stability.sweep import worker
from stability.sweep.grid import Cell
from stability.sweep.pool import Pool

HERE = Path(__file__).parent
CONFIG = {
    "allow": [],
    "depth": 1,
    "device": "cpu",
    "end": "well",
    "fail_fast": False,
    "isolate": False,
    "lock_minutes": 10.0,
    "n_jobs": 1,
    "step_s": 0.0,
    "threads": 1,
    "train": {"steps": 2},
}


class Notes:
    def __init__(self):
        self.starts, self.rows, self.ends, self.asked = [], [], [], []

    def started(self, cell):
        self.starts.append(cell.run)

    def report(self, cell, row):
        self.rows.append((cell.run, row))

    def ended(self, cell, outcome):
        self.ends.append((cell.run, outcome))

    def stopping(self, runs):
        self.asked.append(runs)


def cells(folder, *ends, **changes):
    made = []
    for i, end in enumerate(ends):
        config = CONFIG | changes | {"end": end}
        made.append(Cell(config, {}, f"run{i}", f"end-{end}", folder / f"end-{end}_run{i}", ()))
    return made


def run(made, seats=1, **changes):
    setup = worker.Setup(trusted=(HERE,), execute="stub_job")
    runs = Pool([setup] * seats, Notes(), made[0].config | changes)
    runs.run(made)
    return runs


def state(cell):
    return json.loads((cell.folder / "run.json").read_text())


def kinds(runs):
    return [outcome.kind for _, outcome in sorted(runs.outcomes.items())]
