"""Sweeps are found wherever they lie; frames hold what the files hold, beside what varies."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import stability
from stability.results import frames
from stability.results.atomic import Unreadable
from stability.results.frames import sweep_rows
from stability.results.index import index, sweeps
from stability.results.schema import PROBES, RUNS_FILE, TABLES
from stability.results.stream import block_outputs, l2
from synthetic import GRADIENT, VARIANCE, row_of, write_run, write_sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs") / "sweep"
    write_sweep(folder, {"norm": ["pre", "post", "none"], "depth": [2, 5]})
    return folder


def test_a_run_a_sweep_and_a_folder_of_sweeps_are_all_found(tmp_path: Path) -> None:
    runs = write_sweep(tmp_path / "a" / "deep", {"norm": ["pre", "post"]})
    other = write_run(tmp_path / "b", {"norm": "pre"})
    (tmp_path / ".hidden").mkdir()
    write_run(tmp_path / ".hidden", {"norm": "none"})
    assert sweeps(tmp_path) == {tmp_path / "a" / "deep": sorted(runs), tmp_path / "b": [other]}
    assert sweeps(other) == {other: [other]}
    assert len(stability.load(other, "runs")) == 1
    assert not (other / RUNS_FILE).exists()


@pytest.mark.parametrize("kind", ["missing", "file", "empty", "foreign"])
def test_what_holds_no_runs_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "file":
        path.write_text("x")
    elif kind != "missing":
        path.mkdir()
    if kind == "foreign":
        (path / "notes.txt").write_text("x")
    with pytest.raises(Unreadable, match=str(path)) as error:
        stability.load(path)
    assert "\n" not in str(error.value)


def test_the_index_has_a_row_per_run_with_state_config_and_growth(sweep: Path) -> None:
    runs, damaged = index(sweep)
    assert len(runs) == 6 and damaged == {}
    for _, run in runs.iterrows():
        config = row_of(sweep / run["folder"])
        state = json.loads((sweep / run["folder"] / "run.json").read_text())
        assert run["run"] == state["run"] and run["status"] == "completed"
        assert run["norm.label"] == config["norm.label"] and run["train.lr"] == config["train.lr"]
        assert run["data.unigram_entropy"] == state["data"]["unigram_entropy"]
        depth, variance, gradient = run["depth"], VARIANCE[run["norm"]], GRADIENT[run["norm"]]
        assert run["last_step"] == 40
        assert run["variance_growth"] == pytest.approx(variance(depth) / variance(1))
        assert run["grad_ratio"] == pytest.approx(gradient(1, depth) / gradient(depth, depth))
    post = runs[runs["norm"] == "post"]
    assert np.allclose(post["grad_ratio"], 1) and (post["grad_ratio_median"] < 1).all()


def test_the_index_is_cached_and_made_again_for_changed_runs_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = write_sweep(tmp_path, {"norm": ["pre", "post"]})
    before = index(tmp_path).runs
    made: list[str] = []
    read = stability.results.index.run_row
    monkeypatch.setattr("stability.results.index.run_row", lambda f: made.append(f.name) or read(f))
    pd.testing.assert_frame_equal(index(tmp_path).runs, before)
    assert made == []
    state = json.loads((second / "run.json").read_text()) | {"outcome": "as planned"}
    (second / "run.json").write_text(json.dumps(state))
    assert set(index(tmp_path).runs["outcome"]) == {"completed", "as planned"}
    assert made == [second.name]
    third = write_run(tmp_path, {"norm": "none"}, status="running")
    index(tmp_path)
    assert index(tmp_path).runs["status"].tolist().count("running") == 1
    assert made == [second.name, third.name, third.name]
    (tmp_path / RUNS_FILE).write_bytes(b"torn")
    assert len(index(tmp_path).runs) == 3
    assert [p.name for p in tmp_path.glob(".*")] == []


def test_a_sweep_that_cannot_be_written_to_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, {"norm": "pre"})

    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("stability.results.index._write", refuse)
    assert len(index(tmp_path).runs) == 1 and not (tmp_path / RUNS_FILE).exists()


DAMAGES = {
    "state is of words": lambda run: change_state(run, format="one"),
    "state lacks its data": lambda run: change_state(run, data={}),
    "config is a list": lambda run: (run / "config.yaml").write_text("[1, 2]"),
    "config lacks choices": lambda run: (run / "config.yaml").write_text("depth: 2"),
    "choices are a list": lambda run: (run / "config.yaml").write_text("choices: [pre]"),
    "config holds a date": lambda run: append(run / "config.yaml", "odd: [2020-01-01]\n"),
    "config holds itself": lambda run: append(run / "config.yaml", "odd: &odd [*odd]\n"),
    "state is torn": lambda run: (run / "run.json").write_text('{"format": 1, "run"'),
    "state is a list": lambda run: (run / "run.json").write_text("[]"),
    "state lacks keys": lambda run: (run / "run.json").write_text('{"format": 1}'),
    "format is newer": lambda run: (run / "run.json").write_text('{"format": 99}'),
    "config is missing": lambda run: (run / "config.yaml").unlink(),
    "config is no yaml": lambda run: (run / "config.yaml").write_text("a: [1"),
    "config is binary": lambda run: (run / "config.yaml").write_bytes(b"\xff\x00\xfe"),
    "table is truncated": lambda run: os.truncate(run / "layers.parquet", 500),
    "table is empty": lambda run: os.truncate(run / "steps.parquet", 0),
    "a page has changed": lambda run: flip(run / "layers.parquet", "rms"),
    "numbers are words": lambda run: retype(run / "layers.parquet", "rms"),
}


def change_state(run: Path, **changes: object) -> None:
    state = json.loads((run / "run.json").read_text()) | changes
    (run / "run.json").write_text(json.dumps(state))


def append(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


def flip(file: Path, column: str) -> None:
    """Change a bit in the middle of a column, as a disk does."""
    footer = pq.read_metadata(file)
    chunk = footer.row_group(0).column(footer.schema.names.index(column))
    content = bytearray(file.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 1
    file.write_bytes(content)


def retype(file: Path, column: str) -> None:
    """Put words into a column of numbers, as a hand does."""
    rows = pd.read_parquet(file)
    rows.assign(**{column: "large"}).to_parquet(file)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_left_out_and_named(tmp_path: Path, damage: str) -> None:
    good, bad = write_sweep(tmp_path, {"norm": ["pre", "post"]})
    DAMAGES[damage](bad)
    found = sweep_rows(tmp_path)
    frame = found.frame
    assert frame["run"].nunique() == 1 and str(frame["run"].iloc[0]) in good.name
    ((name, why),) = found.damaged.items()
    assert index(tmp_path).damaged == found.damaged
    assert name == bad.name and bad.name in why and "\n" not in why
    with pytest.raises(Unreadable, match=bad.name):
        stability.load(bad)


def test_a_defect_of_the_reader_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, {"norm": "pre"})
    monkeypatch.setattr("stability.results.run_row.flatten", lambda config: config.surprise)
    with pytest.raises(AttributeError, match="surprise"):
        index(tmp_path)


def test_damage_that_came_after_the_index_is_told_in_a_line(tmp_path: Path) -> None:
    file = write_run(tmp_path, {"norm": "pre"}) / "layers.parquet"
    index(tmp_path)
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    flip(file, "rms")
    os.utime(file, ns=times)
    with pytest.raises(Unreadable, match=tmp_path.name) as said:
        stability.load(tmp_path)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\0" * 99 + b"PAR1"])
def test_a_damaged_index_is_made_anew(tmp_path: Path, content: bytes) -> None:
    write_run(tmp_path, {"norm": "pre"})
    wanted = index(tmp_path).runs
    (tmp_path / RUNS_FILE).write_bytes(content)
    pd.testing.assert_frame_equal(index(tmp_path).runs, wanted)


def test_a_parquet_file_of_others_is_no_index(tmp_path: Path) -> None:
    write_run(tmp_path, {"norm": "pre"})
    wanted = index(tmp_path).runs
    pd.read_parquet(tmp_path / RUNS_FILE).drop(columns="folder").to_parquet(tmp_path / RUNS_FILE)
    pd.testing.assert_frame_equal(index(tmp_path).runs, wanted)


def test_rows_come_with_the_axes_that_vary(sweep: Path) -> None:
    found = sweep_rows(sweep)
    frame = found.frame
    pd.testing.assert_frame_equal(stability.load(sweep), frame)
    assert list(frame.columns) == [c.name for c in TABLES["layers"]] + ["norm", "depth"]
    assert found.axes == ("norm", "depth")
    assert list(frame["norm"].cat.categories) == ["pre", "post", "none"]
    assert found.options["norm"]["none"] == ("no norm", 2)
    for folder in sweep.iterdir():
        if folder.is_dir():
            config = row_of(folder)
            raw = pd.read_parquet(folder / "layers.parquet")
            mine = frame[frame["run"] == raw["run"].iloc[0]]
            assert set(mine["norm"]) == {config["norm"]} and set(mine["depth"]) == {config["depth"]}
            np.testing.assert_array_equal(mine["var"], raw["var"])


def test_columns_and_filters_reach_both_the_table_and_the_runs(sweep: Path) -> None:
    where = {"site": ["scores"], "step": [20]}
    frame = stability.load(sweep, "layers", ["layer", "absmax", "status", "train.lr"], where)
    assert list(frame) == ["run", "layer", "absmax", "norm", "depth", "status", "train.lr"]
    assert len(frame) == 3 * (2 + 5)
    with pytest.raises(KeyError, match="surprise"):
        stability.load(sweep, "layers", ["surprise"])
    with pytest.raises(KeyError, match="known: layers"):
        stability.load(sweep, "layer")


def test_a_run_that_was_asked_for_no_probes_has_no_rows_of_them(tmp_path: Path) -> None:
    for folder in (write_run(tmp_path, {"depth": depth}, steps=1) for depth in (1, 2)):
        (folder / "probes.parquet").unlink(missing_ok=True)
    frame = stability.load(tmp_path, "probes")
    assert len(frame) == 0
    assert list(frame) == [*(c.name for c in PROBES), "depth"]
    assert len(stability.load(tmp_path, "runs")) == 2


def test_many_sweeps_load_as_one_frame(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, {"norm": "pre"}, rows=name == "a")
    frame = stability.load(tmp_path, "steps", ["loss"])
    assert set(frame["sweep"]) == {"a"} and len(frame) == 41
    assert set(stability.load(tmp_path, "runs")["sweep"]) == {"a", "b"}


def test_a_running_run_shows_its_flushed_rows(tmp_path: Path) -> None:
    write_run(tmp_path, {"norm": "pre"}, status="running")
    assert list(tmp_path.glob("*/layers.parts/part-*.parquet"))
    assert not list(tmp_path.glob("*/layers.parquet"))
    found = sweep_rows(tmp_path)
    assert set(found.frame["step"]) == {0, 20, 40}
    assert found.remarks == ("1 of 1 runs running",)


def varying(*rows: dict[str, object]) -> list[str]:
    return frames.varying(pd.DataFrame(rows))


def test_only_what_varies_by_itself_is_an_axis() -> None:
    pre = {"norm": "pre", "norm.label": "Pre-LN", "norm.build._target_": "A", "depth": 6, "seed": 0}
    post = {**pre, "norm": "post", "norm.label": "Post-LN", "norm.build._target_": "B"}
    assert varying(pre, post) == ["norm"]
    assert varying(pre, {**post, "depth": 24}) == ["norm", "depth"]
    assert varying(pre, {**pre, "out": "elsewhere", "device": "cuda", "train.steps": 9}) == []
    assert varying(pre, {**pre, "norm.build.alpha": 2.0}) == ["norm.build.alpha"]


def test_what_a_model_brings_along_is_no_axis_beside_the_model() -> None:
    small = {"model": "nano", "depth": 6, "model.width": 64}
    large = {"model": "gpt2", "depth": 12, "model.width": 768}
    assert varying(small, large) == ["model"]
    assert varying(small, large, {**large, "depth": 24}) == ["depth", "model"]


def test_remarks_say_that_data_differ_and_that_runs_go_on(tmp_path: Path) -> None:
    write_run(tmp_path, {"norm": "pre"}, data_hash="a" * 64)
    write_run(tmp_path, {"norm": "post"}, data_hash="b" * 64, status="failed")
    said = sweep_rows(tmp_path, "runs").remarks
    assert said == ("mixes 2 data sets: aaaaaaaa, bbbbbbbb", "1 of 2 runs failed")


def test_l2_and_block_outputs_are_what_they_say() -> None:
    rows = pd.DataFrame(
        {
            "site": ["resid_post"] * 4 + ["branch_out"],
            "sublayer": ["embed", "attn", "mlp", "linear", "mlp"],
            "layer": [-1, 0, 0, 1, 0],
            "rms": [2.0, 1.0, 3.0, 1.0, 1.0],
            "numel": [4, 4, 4, 4, 4],
            "nonfinite": [0, 0, 3, None, 0],
        }
    )
    outputs = block_outputs(rows)
    assert list(outputs["l"]) == [0, 1, 2]
    assert list(l2(outputs)) == [4.0, 3.0, 2.0]


def test_a_loss_of_nan_and_mixed_knobs_survive_the_index(tmp_path: Path) -> None:
    write_run(tmp_path, {"norm": "none", "loss_scale": "dynamic"}, bad_step=0)
    write_run(tmp_path, {"norm": "pre", "loss_scale": 1024.0})
    for _ in range(2):
        runs = index(tmp_path).runs.set_index("norm")
        assert math.isnan(runs.loc["none", "final_loss"])
        assert runs.loc["none", "first_bad.site"] == "resid_post"
        assert set(runs["loss_scale"]) == {"dynamic", "1024.0"}


@pytest.mark.parametrize("name", ["a" * 300, "a\0b"])
def test_a_path_that_the_system_does_not_take_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Unreadable, match=r"(?s)cannot be a folder|does not exist"):
        sweeps(tmp_path / name)
