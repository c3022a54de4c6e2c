"""The last words of a sweep: readable in a narrow terminal, and true of what goes on."""

import io
import json
import re
import signal

import pytest
from rich.console import Console

from stability.config.knobs import Config
from stability.sweep.grid import Cell
from stability.sweep.pool import Outcome
from stability.sweep.summary import NUMBERS, Finished, conclude
from synthetic import write_sweep

LONG = {"norm": ["pre", "post", "none"], "norm_type": ["layernorm"], "model.activation": ["gelu"]}


@pytest.fixture
def cells(tmp_path):
    """Runs on disk whose long names differ in one word."""
    made = []
    for folder in write_sweep(tmp_path / "s", LONG, steps=1):
        label, _, run = folder.name.rpartition("_")
        made.append(Cell(Config(), {}, run, label, folder, ()))
    return made


def said(cells, outcomes=None, width=80, named=True, stopped=None):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    try:
        conclude(cells, outcomes or {}, named, stopped, console)
    except Finished as finished:
        assert finished.code in (1, 130)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_names_are_whole_and_apart_at_any_width(cells, width):
    text = said(cells, width=width)
    assert "…" not in text
    table = text.partition("files:")[0]
    assert all(len(line.rstrip()) <= width for line in table.splitlines())
    first = [re.match(r"\S*", line)[0] for line in table.splitlines()]
    for cell in cells:
        assert cell.folder.name in "".join(first)


def test_a_narrow_terminal_is_shown_fewer_numbers_never_cut_ones(cells):
    narrow, wide = said(cells, width=80), said(cells, width=180)
    for title in NUMBERS.values():
        assert all(word in wide for word in title.split())
    assert "validation" in narrow and "training" not in narrow
    loss = re.search(r"completed +(\S+)", wide)[1]
    assert re.search(r"completed +(\S+)", narrow)[1] == loss


def test_both_losses_are_called_what_they_are(cells):
    above, _, first, *_ = (line.split() for line in said(cells, width=180).splitlines())
    assert (above[0], above[-1]) == ("validation", "training")
    validation, training = float(first[2]), float(first[-1])
    assert validation == pytest.approx(training + 0.05, abs=0.002)  # as it was written


def test_a_failed_run_that_never_had_a_log_is_named_with_its_cause_alone(cells):
    lost = Cell(
        {}, {}, "0badf00d", "norm-peri", cells[0].folder.with_name("norm-peri_0badf00d"), ()
    )
    outcomes = {"0badf00d": Outcome("failed", cause="no worker could be started (EOFError)")}
    text = said([*cells, lost], outcomes)
    assert "failed:  norm-peri: no worker could be started (EOFError)\n" in text


def test_a_run_that_failed_while_its_file_could_not_be_written_is_not_running(cells):
    state = json.loads((cells[0].folder / "run.json").read_text())
    (cells[0].folder / "run.json").write_text(json.dumps(state | {"status": "running"}))
    text = said(cells, {cells[0].run: Outcome("failed", cause="no space left")}, width=180)
    assert "running" not in text.partition("failed:  ")[0]
    assert re.search(rf"{cells[0].run} +failed", text)


def test_a_run_that_cannot_be_read_is_named_with_the_reason(cells):
    (cells[0].folder / "layers.parquet").write_bytes(b"torn")
    text = said(cells, width=180)
    assert re.search(rf"{cells[0].run} +unreadable", text) and "not started" not in text
    assert "layers.parquet" in text and "made again" in text


@pytest.mark.parametrize("stopped", [signal.SIGINT, None])
def test_a_named_sweep_that_is_not_finished_says_that_the_same_command_goes_on(cells, stopped):
    kind = "interrupted" if stopped else "failed"
    text = said(cells, {cells[0].run: Outcome(kind, cause="why")}, stopped=stopped)
    assert "resume:  the same command again" in text
    assert "resume" not in said(cells)
