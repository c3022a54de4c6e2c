"""What is appended is read back bit for bit; a crash loses only what was not flushed."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from stability.results import parquet, schema
from stability.results.parquet import Writer, arrow_schema, read

RUN = "1f3a9c2e"
METADATA = {"stability.config": '{"depth": 6}', "stability.run": RUN, "stability.format": "1"}


def rows(step: int, layers: int = 3, **columns: object) -> dict[str, object]:
    n = layers
    return {
        "run": [RUN] * n,
        "step": [step] * n,
        "layer": np.arange(n),
        "sublayer": ["attn"] * n,
        "site": ["resid_pre"] * n,
        "kind": ["act"] * n,
        "numel": [64] * n,
        **columns,
    }


@pytest.mark.parametrize("name", schema.TABLES)
def test_columns_are_those_of_the_schema(name: str) -> None:
    arrow = arrow_schema(name)
    assert arrow.names == [c.name for c in schema.TABLES[name]]
    assert [f.nullable for f in arrow] == [not c.required for c in schema.TABLES[name]]


@pytest.mark.parametrize("closed", [False, True])
def test_values_come_back_bit_for_bit(tmp_path: Path, closed: bool) -> None:
    values = [float("nan"), float("inf"), -0.0, 5e-324, 1e-25, 0.1 + 0.2, 1.7e308, None]
    writer = Writer(tmp_path, "layers", METADATA)
    writer.append(rows(0, 8, var=values, mean=np.arange(8) / 7, lost=[None, 2**62, *[0] * 6]))
    writer.close() if closed else writer.flush()
    back = read(tmp_path, "layers")
    assert back.schema.equals(arrow_schema("layers"))
    assert back["var"].null_count == 1
    wanted = np.array(values[:-1], float).view(np.uint64)
    assert (np.array(back["var"].to_pylist()[:-1]).view(np.uint64) == wanted).all()
    assert back["mean"].to_pylist() == list(np.arange(8) / 7)
    assert back["lost"].to_pylist()[:2] == [None, 2**62]
    assert back["absmax"].null_count == 8


def test_an_absent_table_is_empty_and_has_its_columns(tmp_path: Path) -> None:
    empty = read(tmp_path, "layers", columns=["layer", "var"])
    assert empty.num_rows == 0 and empty.column_names == ["layer", "var"]


def test_closing_without_rows_leaves_a_file_that_reads(tmp_path: Path) -> None:
    Writer(tmp_path, "probes", METADATA).close()
    assert len(pd.read_parquet(tmp_path / "probes.parquet")) == 0


def test_rows_keep_their_order_over_parts_compaction_and_more_parts(tmp_path: Path) -> None:
    for first in (0, 4):
        writer = Writer(tmp_path, "layers", METADATA)
        for step in range(first, first + 4):
            writer.append(rows(step))
            assert writer.pending == 3
            writer.flush()
        if first == 0:
            writer.close()
            writer.close()
    assert len(parquet.files(tmp_path, "layers")) == 5
    wanted = [step for step in range(8) for _ in range(3)]
    assert read(tmp_path, "layers")["step"].to_pylist() == wanted
    writer.close()
    assert parquet.files(tmp_path, "layers") == [tmp_path / "layers.parquet"]
    assert not (tmp_path / "layers.parts").exists()
    assert read(tmp_path, "layers")["step"].to_pylist() == wanted


def test_parts_that_outlive_a_compaction_are_not_read_twice(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "layers", METADATA)
    writer.append(rows(0))
    writer.flush()
    part = tmp_path / "layers.parts" / "part-000000.parquet"
    saved = part.read_bytes()
    writer.close()
    part.parent.mkdir()
    part.write_bytes(saved)  # as if the process had died before it removed its parts
    (part.parent / ".part-000001.parquet.tmp").write_bytes(b"torn")
    assert read(tmp_path, "layers").num_rows == 3
    again = Writer(tmp_path, "layers", METADATA)
    again.append(rows(1))
    again.close()
    assert read(tmp_path, "layers")["step"].to_pylist() == [0] * 3 + [1] * 3
    assert not part.parent.exists()


def test_a_writer_takes_a_link_away_and_leaves_what_it_led_to(tmp_path: Path) -> None:
    victim, run = tmp_path / "victim", tmp_path / "run"
    victim.mkdir()
    run.mkdir()
    (victim / "part-000000.parquet").write_bytes(b"theirs")
    (run / "layers.parts").symlink_to(victim)
    writer = Writer(run, "layers", METADATA)
    writer.append(rows(0))
    writer.flush()
    writer.close()
    assert [p.read_bytes() for p in victim.iterdir()] == [b"theirs"]
    assert read(run, "layers").num_rows == 3


def test_each_file_carries_its_runs_config(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "layers", METADATA)
    writer.append(rows(0))
    writer.flush()
    part = pq.read_metadata(tmp_path / "layers.parts" / "part-000000.parquet").metadata
    writer.close()
    whole = pq.read_metadata(tmp_path / "layers.parquet").metadata
    for stored in (part, whole):
        assert {k: stored[k.encode()].decode() for k in METADATA} == METADATA


def test_only_keys_are_dictionary_encoded(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "layers", METADATA)
    writer.append(rows(0, var=[1.0, 1.0, 1.0]))
    writer.close()
    group = pq.read_metadata(tmp_path / "layers.parquet").row_group(0)
    encoded = {
        group.column(i).path_in_schema
        for i in range(group.num_columns)
        if any("DICTIONARY" in e for e in group.column(i).encodings)
    }
    assert encoded == {"run", "sublayer", "site", "kind"}
    frame = pd.read_parquet(tmp_path / "layers.parquet")
    assert isinstance(frame["site"].dtype, pd.CategoricalDtype)


def test_the_hash_of_a_run_is_a_plain_string_and_older_files_that_encode_it_are_read(
    tmp_path: Path,
) -> None:
    assert arrow_schema("layers").field("run").type == pa.string()
    writer = Writer(tmp_path, "layers", METADATA)
    writer.append(rows(0))
    writer.flush()
    (part,) = parquet.files(tmp_path, "layers")
    old = pq.read_table(part)
    pq.write_table(old.set_column(0, "run", old["run"].dictionary_encode()), part)
    writer.append(rows(1))
    writer.flush()
    for close in (False, True):
        writer.close() if close else None
        back = read(tmp_path, "layers", filter=pc.field("run") == RUN)
        assert back["run"].to_pylist() == [RUN] * 6
        assert back.schema.field("run").type == pa.string()


def test_filters_and_columns_select(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "layers", METADATA)
    for step in range(3):
        writer.append(rows(step))
        writer.append(rows(step, site=["scores"] * 3))
        writer.flush()
    wanted = (pc.field("site") == "scores") & pc.field("step").isin([0, 2])
    found = read(tmp_path, "layers", ["step", "layer"], wanted)
    assert found.to_pydict() == {"step": [0] * 3 + [2] * 3, "layer": [0, 1, 2] * 2}


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"surprise": [0, 0, 0]}, "surprise"),
        ({"var": [0.0]}, "length"),
        ({"layer": [0, None, 2]}, "layer"),
        ({"numel": None}, "numel"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    tmp_path: Path, columns: dict[str, object], error: str
) -> None:
    row = {k: v for k, v in {**rows(0), **columns}.items() if v is not None}
    with pytest.raises((KeyError, ValueError), match=error):
        Writer(tmp_path, "layers", METADATA).append(row)


@pytest.mark.parametrize("closed", [False, True])
def test_only_the_rows_of_steps_that_are_kept_stay_and_more_can_follow(
    tmp_path: Path, closed: bool
) -> None:
    writer = Writer(tmp_path, "layers", METADATA)
    for step in range(4):
        writer.append(rows(step))
        writer.flush()
    if closed:
        writer.close()
    writer = Writer(tmp_path, "layers", METADATA)
    writer.append(rows(9))
    writer.keep(iter([0, 2]))
    assert writer.pending == 0
    assert read(tmp_path, "layers")["step"].to_pylist() == [0] * 3 + [2] * 3
    assert parquet.files(tmp_path, "layers") == [tmp_path / "layers.parquet"]
    writer.append(rows(3))
    writer.flush()
    assert read(tmp_path, "layers")["step"].to_pylist() == [0] * 3 + [2] * 3 + [3] * 3


def test_another_writer_goes_on_after_the_parts_of_one_that_was_not_closed(tmp_path: Path) -> None:
    for step in range(3):
        writer = Writer(tmp_path, "layers", METADATA)
        writer.append(rows(step))
        writer.flush()
    assert [p.name[:11] for p in parquet.files(tmp_path, "layers")] == [
        f"part-00000{n}" for n in range(3)
    ]
    assert read(tmp_path, "layers")["step"].to_pylist() == [0] * 3 + [1] * 3 + [2] * 3


def test_to_keep_steps_of_a_table_without_rows_writes_nothing(tmp_path: Path) -> None:
    Writer(tmp_path, "layers", METADATA).keep([0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("linked", [False, True])
def test_a_discarded_table_is_gone_and_what_a_link_leads_to_is_not(
    tmp_path: Path, linked: bool
) -> None:
    run = tmp_path / "run"
    for finish in (Writer.close, Writer.flush):
        writer = Writer(run, "layers", METADATA)
        writer.append(rows(0))
        finish(writer)
    if linked:
        (run / "layers.parts").rename(tmp_path / "theirs")
        (run / "layers.parts").symlink_to(tmp_path / "theirs")
    else:
        (run / "layers.parts" / ".part-000009.parquet.1").write_bytes(b"torn")
    parquet.discard(run, "layers")
    assert not list(run.iterdir())
    assert len(list((tmp_path / "theirs").glob("*"))) == linked
    parquet.discard(run, "layers")


def test_a_file_that_is_no_part_keeps_its_folder(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "layers", METADATA)
    writer.append(rows(0))
    writer.flush()
    notes = tmp_path / "layers.parts" / "notes.txt"
    notes.write_text("mine")
    writer.close()
    assert [p.name for p in notes.parent.iterdir()] == ["notes.txt"]
    assert read(tmp_path, "layers").num_rows == 3


def test_a_flush_without_rows_writes_no_part(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "layers", METADATA)
    writer.flush()
    assert not list(tmp_path.iterdir())
    for step in range(3):
        writer.append(rows(step))
        writer.flush()
        writer.flush()
    parts = sorted((tmp_path / "layers.parts").iterdir())
    assert [p.name for p in parts] == [f"part-00000{n}.parquet" for n in range(3)]


def _write_forever(folder: Path) -> None:
    writer = Writer(folder, "layers", METADATA)
    for step in range(10**6):
        writer.append(rows(step, 700))
        writer.flush()
        (folder / "flushed").write_text(str(step))
        if step % 5 == 4:
            writer.close()


def test_a_kill_at_any_moment_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    for attempt in range(6):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        child = multiprocessing.get_context("fork").Process(target=_write_forever, args=(folder,))
        child.start()
        time.sleep(0.15 + 0.03 * attempt)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        flushed = (folder / "flushed").read_text() if (folder / "flushed").exists() else ""
        steps = read(folder, "layers", ["step"])["step"].to_numpy()
        seen, counts = np.unique(steps, return_counts=True)
        assert (counts == 700).all()
        assert list(seen) == list(range(len(seen)))
        assert len(seen) >= (int(flushed) + 1 if flushed else 0)


def test_a_thousand_runs_are_one_scan(tmp_path: Path) -> None:
    for name in "ab":
        writer = Writer(tmp_path / name, "layers", METADATA)
        writer.append(rows(0, run=[name] * 3))
        writer.flush()
    paths = [p for name in "ab" for p in parquet.files(tmp_path / name, "layers")]
    both = parquet.scan(paths, "layers", ["run"])
    assert both["run"].to_pylist() == ["a"] * 3 + ["b"] * 3
    assert isinstance(both, pa.Table)


def test_files_that_a_run_compacts_while_they_are_read_are_listed_again():
    found = iter([FileNotFoundError(), FileNotFoundError(), "rows"])

    def look():
        value = next(found)
        if isinstance(value, Exception):
            raise value
        return value

    assert parquet.settled(look) == "rows"

    def gone():
        raise FileNotFoundError

    with pytest.raises(FileNotFoundError):
        parquet.settled(gone)
