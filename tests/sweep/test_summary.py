"""What a sweep prints at its end is true, fits a narrow terminal, and agrees with the exit code."""

import io
import json
import re
import signal
from dataclasses import replace

import pytest
from rich.console import Console

from stability.config.knobs import Config
from stability.sweep.grid import Cell
from stability.sweep.pool import RunEnd
from stability.sweep.summary import COLUMNS, NUMBER_WIDTH, STATUS_WIDTH, conclude
from synthetic import write_run, write_sweep

LONG = {"norm": ["pre", "post", "none"], "norm_type": ["layernorm"], "activation": ["gelu"]}


@pytest.fixture
def cells(tmp_path):
    """Runs on disk whose long names differ in one word."""
    made = []
    for folder in write_sweep(tmp_path / "s", LONG, steps=1):
        label, _, run = folder.name.rpartition("_")
        made.append(Cell(Config(), {}, run, label, folder, ()))
    return made


def cell_of(folder):
    label, _, run = folder.name.rpartition("_")
    return Cell(Config(), {}, run, label, folder, ())


def printed(cells, ends=None, width=80, named=True, stopped=None):
    """What the summary prints; and its exit code."""
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    code = conclude(cells, ends or {}, named, stopped, console)
    return console.file.getvalue(), code


def text_of(cells, *args, **kwargs):
    return printed(cells, *args, **kwargs)[0]


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_names_are_whole_and_apart_at_any_width(cells, width):
    text = text_of(cells, width=width)
    assert "…" not in text
    table = text.partition("files:")[0]
    assert all(len(line.rstrip()) <= width for line in table.splitlines())
    first = [re.match(r"\S*", line)[0] for line in table.splitlines()]
    for cell in cells:
        assert cell.folder.name in "".join(first)


def test_a_narrow_terminal_gets_fewer_numbers_and_none_is_cut(cells):
    narrow, wide = text_of(cells, width=80), text_of(cells, width=180)
    for title in COLUMNS.values():
        assert all(word in wide for word in title.split())
    assert "validation" in narrow and "training" not in narrow
    loss = re.search(r"completed +(\S+)", wide)[1]
    assert re.search(r"completed +(\S+)", narrow)[1] == loss


def test_the_two_losses_have_their_titles(cells):
    above, _, first, *_ = (line.split() for line in text_of(cells, width=180).splitlines())
    assert (above[0], above[-1]) == ("validation", "training")
    validation, training = float(first[2]), float(first[-1])
    assert validation == pytest.approx(training + 0.05, abs=0.002)  # as it was written


def test_what_the_columns_show_is_said_below_them(cells):
    text = text_of(cells, width=120)
    assert "losses in nats; learned: 0.3 below the unigram entropy (" in text
    assert "variance growth: Var(x_L)/Var(x_1)" in text
    assert "|dloss/dx_1| / |dloss/dx_L|, for the median token" in text


def test_a_column_without_a_number_is_left_out(tmp_path):
    folder = write_run(tmp_path / "s", {"norm": "pre"}, steps=1)
    state = json.loads((folder / "run.json").read_text())
    bare = dict.fromkeys(("final_loss", "final_val_loss", "learned"))
    (folder / "run.json").write_text(json.dumps(state | bare))
    text = text_of([cell_of(folder)], width=180)
    assert "loss\n" not in text and "losses in nats" not in text and "growth" in text


@pytest.mark.parametrize(("learned", "is_said"), [(True, False), (False, True), (None, False)])
def test_a_completed_run_that_has_not_learned_is_marked(tmp_path, learned, is_said):
    folder = write_run(tmp_path / "s", {"norm": "pre"}, steps=1)
    state = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(state | {"learned": learned}))
    assert ("not learned" in text_of([cell_of(folder)])) == is_said


def test_diverged_runs_are_shown_with_their_first_bad_place_and_the_command_to_replay(tmp_path):
    made = []
    for seed in range(5):
        folder = write_run(tmp_path / "s", {"seed": seed}, steps=1, status="diverged")
        state = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(state | {"outcome": f"broke at {seed}"}))
        made.append(cell_of(folder))
    text = text_of(made)
    for cell in made[:3]:
        assert f"diverged: {cell.title}: broke at {cell.folder.name[5]}\n" in text
        assert f"python -m stability.replay {cell.folder}\n" in text
    assert text.count("stability.replay") == 3 and "and 2 more" in text


def test_a_failed_run_without_a_log_is_shown_with_its_cause_alone(cells):
    lost = Cell(
        Config(), {}, "0badf00d", "norm-peri", cells[0].folder.with_name("norm-peri_0badf00d"), ()
    )
    ends = {"0badf00d": RunEnd("failed", cause="no worker could be started (EOFError)")}
    text = text_of([*cells, lost], ends)
    assert "failed:  norm-peri: no worker could be started (EOFError)\n" in text


def test_a_run_that_failed_while_its_file_could_not_be_written_is_shown_as_failed(cells):
    state = json.loads((cells[0].folder / "run.json").read_text())
    (cells[0].folder / "run.json").write_text(json.dumps(state | {"status": "running"}))
    text = text_of(cells, {cells[0].run: RunEnd("failed", cause="no space left")}, width=180)
    assert "running" not in text.partition("failed:  ")[0]
    assert re.search(rf"{cells[0].run} +failed", text)


def test_a_run_that_cannot_be_read_is_shown_with_the_reason(cells):
    (cells[0].folder / "layers.parquet").write_bytes(b"torn")
    text = text_of(cells, width=180)
    assert re.search(rf"{cells[0].run} +unreadable", text) and "not started" not in text
    assert "layers.parquet" in text and "delete its folder to run it again" in text


@pytest.mark.parametrize("stopped", [signal.SIGINT, None])
def test_the_same_command_goes_on_with_a_named_sweep(cells, stopped):
    kind = "interrupted" if stopped else "failed"
    text = text_of(cells, {cells[0].run: RunEnd(kind, cause="why")}, stopped=stopped)
    assert "resume:  the same command again" in text
    assert "resume" not in text_of(cells)


@pytest.mark.parametrize(
    ("stopped", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGUSR1, 143)],
)
def test_the_exit_code_of_a_stopped_sweep_is_130_or_143(cells, stopped, code):
    interrupted, failed = RunEnd("interrupted"), RunEnd("failed", cause="why")
    ends = {cells[0].run: interrupted, cells[1].run: failed}
    assert printed(cells, ends, stopped=stopped)[1] == code


@pytest.mark.parametrize(
    ("kind", "code"), [("done", 0), ("held", 0), ("interrupted", 143), ("failed", 1)]
)
def test_the_exit_code_of_a_sweep_says_whether_a_run_failed_or_was_interrupted(cells, kind, code):
    assert printed(cells, {cells[0].run: RunEnd(kind, cause="why")})[1] == code


@pytest.mark.parametrize(("share", "is_said"), [(0.009, False), (0.25, True)])
def test_a_run_with_subnormal_gradients_is_named_with_what_to_do(tmp_path, share, is_said):
    made = []
    for norm, subnormal in (("pre", 0), ("post", int(share * 512 * 64))):
        folder = write_run(tmp_path / "s", {"norm": norm}, steps=1, subnormal=subnormal)
        label, _, run = folder.name.rpartition("_")
        made.append(Cell(Config(), {}, run, label, folder, ()))
    text = " ".join(text_of(made).split())
    assert ("subnormal numbers (largest share: norm-post 25%)" in text) == is_said
    assert ("flush_subnormal=true" in text) == is_said


@pytest.mark.parametrize(
    ("kernel", "dtype", "share", "said"),
    [
        ("math", "fp32", 0.019, ""),
        ("math", "fp32", 0.38, "right in their order of magnitude at best"),
        ("math", "fp32", 8.3, "right in their order of magnitude at best"),
        ("fused", "fp32", 0.38, "right in their order of magnitude at best"),
        ("fused", "fp32", 8.3, "rounding error of the fused kernel"),
        ("fused", "fp64", 8.3, ""),
    ],
)
def test_scores_that_a_format_does_not_resolve_are_said(tmp_path, kernel, dtype, share, said):
    changes = {"model.attention": kernel, "dtype": dtype}
    folder = write_run(tmp_path / "s", changes, steps=1, largest_score=share * 2.0**24)
    cell = replace(cell_of(folder), config=Config().changed(changes))
    text = " ".join(text_of([cell]).split())
    assert (f"{cell.title} {share:.2g}): gradients are {said}" in text) == bool(said)
    assert ("does not resolve" in text) == bool(said)


def test_subnormal_numbers_of_fp16_are_not_said_to_be_slow(tmp_path):
    folder = write_run(tmp_path / "s", {"dtype": "fp16"}, steps=1, subnormal=512 * 32)
    label, _, run = folder.name.rpartition("_")
    cell = Cell(Config().changed({"dtype": "fp16"}), {}, run, label, folder, ())
    assert "Gradients hold" not in text_of([cell])


def test_runs_on_a_gpu_are_not_said_to_be_slow(tmp_path):
    folder = write_run(tmp_path / "s", {"norm": "post"}, steps=1, subnormal=512 * 32)
    state = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(state | {"device": "NVIDIA H200"}))
    label, _, run = folder.name.rpartition("_")
    assert "subnormal" not in text_of([Cell(Config(), {}, run, label, folder, ())])


def test_a_name_that_just_fits_stays_on_its_line(cells):
    longest = max(cells, key=lambda cell: len(cell.folder.name))
    beside = STATUS_WIDTH + NUMBER_WIDTH * len(COLUMNS)
    for missing in (0, 1):
        text = text_of([longest], width=len(longest.folder.name) + beside - missing)
        assert (longest.folder.name in text.partition("files:")[0]) == (missing == 0)
