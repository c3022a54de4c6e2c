"""What a sweep shows is true, also while it is being stopped."""

import io

import pytest
from rich.console import Console

from stability.config.knobs import Config, Model, Train
from stability.sweep.grid import Cell
from stability.sweep.pool import RunEnd
from stability.sweep.progress import Display, coloured, duration
from stability.sweep.shards import cost

INFO = {"status": "completed", "final_loss": 2.5, "seconds": 3.0}


@pytest.fixture
def cells(tmp_path):
    return [Cell(Config(), {}, f"run{i}", f"seed-{i}", tmp_path / f"run{i}", ()) for i in range(3)]


@pytest.fixture
def display(cells):
    console = Console(width=100, file=io.StringIO(), force_terminal=True, color_system=None)
    made = Display(cells, console)
    made.text = console.file.getvalue
    return made


def bar(display):
    """Words and note of the sweep's own bar."""
    task = display._progress.tasks[0]
    return task.description, task.fields["note"]


def test_ended_runs_are_counted_and_shown_with_their_training_loss(display, cells):
    display.started(cells[0])
    display.ended(cells[0], RunEnd("done", INFO))
    assert "[1/3] seed-0  completed  training loss 2.5  3 s" in display.text()
    assert bar(display)[0] == "[bold]1 of 3 runs"


def row(step, steps=10):
    numbers = dict.fromkeys(("loss", "grad_norm", "tokens_per_s"), 1.0)
    return {**numbers, "step": step, "steps": steps}


def run_two_of_three(display, cells, monkeypatch):
    """Two runs, one after the other: 10 s to the first report, then 400 s."""
    clock = iter([0.0, 10.0, 410.0, 410.0, 420.0, 820.0])
    monkeypatch.setattr(display._time_left, "_clock", lambda: next(clock, 820.0))
    for cell in cells[:2]:
        display.started(cell)
        display.report(cell, row(0))
        display.ended(cell, RunEnd("done", INFO | {"steps_done": cell.config.train.steps}))


def test_the_time_left_is_said_once_two_runs_have_ended(display, cells, monkeypatch):
    run_two_of_three(display, cells, monkeypatch)
    assert bar(display)[1] == "about 6 min 50 s left"
    assert display._progress.tasks[0].completed == pytest.approx(2 / 3)


def test_half_a_run_is_half_its_cost(display, cells):
    display.started(cells[0])
    display.report(cells[0], row(5))
    assert display._progress.tasks[0].completed == pytest.approx(1 / 6)
    assert bar(display)[1] == ""


@pytest.mark.parametrize(
    ("status", "learned", "text"),
    [
        ("completed", True, "[green]completed[/]"),
        ("completed", False, "[default]completed[/]"),
        ("completed", None, "[default]completed[/]"),
        ("diverged", None, "[red]diverged[/]"),
        ("failed", None, "[red]failed[/]"),
        ("interrupted", None, "[yellow]interrupted[/]"),
    ],
)
def test_green_is_a_net_that_has_learned_and_red_what_broke(status, learned, text):
    assert coloured(status, learned) == text


def test_a_run_that_has_not_learned_is_not_said_to_be_just_completed(display, cells):
    display.started(cells[0])
    display.ended(cells[0], RunEnd("done", INFO | {"learned": False}))
    assert "completed, not learned  training loss 2.5" in display.text()


def test_the_cost_of_a_run_is_tokens_times_multiplications_per_token():
    config = Config(depth=12, model=Model(width=64, context=8), train=Train(steps=9, batch_size=2))
    assert cost(config) == 10 * 2 * 8 * (12 * 64**2 * 12 + 64 * 256)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (61, "1 min 01 s"),
        (120, "2 min 00 s"),
        (3599, "59 min 59 s"),
        (7260, "2 h 01 min"),
    ],
)
def test_durations_are_shown_in_their_unit(seconds, text):
    assert duration(seconds) == text


def test_a_stop_is_acknowledged_and_promises_no_time(display, cells, monkeypatch):
    run_two_of_three(display, cells, monkeypatch)
    assert bar(display)[1].endswith(" left")
    display.stopping(1)
    assert "stopping: 1 run writes its checkpoint" in display.text()
    display.started(cells[2])
    display.report(cells[2], row(6))
    assert bar(display)[1] == "stopping"


def test_interrupted_runs_do_not_count_as_done(display, cells):
    for cell in cells[:2]:
        display.started(cell)
    display.ended(cells[0], RunEnd("done", INFO))
    display.ended(cells[1], RunEnd("interrupted", INFO | {"status": "interrupted"}))
    assert bar(display)[0] == "[bold]1 of 3 runs"
    assert "seed-1  interrupted" in display.text() and "[2/3]" not in display.text()
