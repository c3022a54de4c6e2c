"""Theory against measurement: the table of errors."""

import tiny
from stability.theory import command
from stability.theory.comparison import compare


def test_the_command_prints_one_row_per_config_with_its_errors(sweep, capsys):
    assert command.main(["check", str(sweep)]) == 0
    head, row, *legend = capsys.readouterr().out.strip().splitlines()
    assert "variance" in head and "standard error" in " ".join(legend)
    assert row.split()[:5] == ["pre", "layernorm", "xavier", "2", "3"]
    assert command.main(["check", str(sweep / "nothing")]) == 2


def test_what_cannot_be_compared_says_why_and_keeps_no_other_row_back(tmp_path, capsys):
    start = {"train.steps": 0}
    cells = {
        "compared": start,
        "dropout": start | {"model.dropout": 0.1},
        "no gradient": start | {"record.kinds": ["act"]},
        "no stream": start | {"record.sites": ["scores"]},
        "torn": start,
    }
    for name, changes in cells.items():
        tiny.run(tiny.make_config(changes, depth=len(name)), tmp_path / "sweep" / name)
    (tmp_path / "sweep" / "torn" / "run.json").write_text("{")
    table, damaged = compare(tmp_path)
    found = table.set_index("depth")
    assert damaged.keys() == {"torn"}
    assert found.loc[len("dropout"), "remark"] == "1 of 1 without theory: model.dropout > 0"
    for name in ("no gradient", "no stream"):
        assert "resid_post" in found.loc[len(name), "remark"]
    row = found.loc[len("compared")]
    assert row["remark"] != row["remark"]  # nothing to remark
    assert float(row["variance"]) >= 0  # of one seed: no error of its own, and no judgement
    assert command.main(["check", str(tmp_path)]) == 0
    assert "left out torn" in capsys.readouterr().err


def test_a_row_holds_every_seed_of_a_config_once_wherever_it_lies(tmp_path):
    for seed in range(3):
        for sweep in ("one", "copy") if seed == 1 else ("one",):
            config = tiny.make_config({"train.steps": 0}, seed=seed, lock_minutes=1.0 + seed)
            tiny.run(config, tmp_path / sweep / f"seed-{seed}")
    (tmp_path / "one" / "seed-2" / "batch0.npz").write_bytes(b"")
    (row,) = compare(tmp_path).table.to_dict("records")
    assert row["seeds"] == 3 and row["non-finite"] == 0 and "+-" in row["variance"]
    assert row["remark"].startswith("1 of 3 without theory: its files cannot be read")


def test_configs_that_differ_are_told_apart_by_what_the_theory_depends_on(tmp_path):
    for width in (16, 32):
        changes = {"train.steps": 0, "model.width": width, "record.every": width}
        tiny.run(tiny.make_config(changes), tmp_path / str(width))
    found = compare(tmp_path).table
    assert set(found["width"]) == {16, 32} and "every" not in found
