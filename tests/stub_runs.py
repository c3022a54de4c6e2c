"""Cells whose runs are stand-ins (`stub_job`), and what a pool says of them."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from stability.config.knobs import Config, Train
from stability.sweep import worker
from stability.sweep.grid import Cell
from stability.sweep.pool import Pool

HERE = Path(__file__).parent


@dataclass
class StubConfig(Config):
    """A config whose run ends as ``end`` says, after steps of so many seconds."""

    end: str = "well"
    step_s: float = 0.0


CONFIG = StubConfig(depth=1, device="cpu", n_jobs=1, train=Train(steps=2))


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
        config = replace(CONFIG, end=end, **changes)
        made.append(Cell(config, {}, f"run{i}", f"end-{end}", folder / f"end-{end}_run{i}", ()))
    return made


def run(made, seats=1, **changes):
    setup = worker.Setup(trusted=(HERE,), execute="stub_job")
    runs = Pool([setup] * seats, Notes(), replace(made[0].config, **changes))
    runs.run(made)
    return runs


def state(cell):
    return json.loads((cell.folder / "run.json").read_text())


def kinds(runs):
    return [outcome.kind for _, outcome in sorted(runs.outcomes.items())]
