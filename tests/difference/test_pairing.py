"""Which run of one side is compared with which of the other."""

import pytest

from stability.difference.pairing import pair, read_sides, text
from stability.results.atomic import Unreadable
from synthetic import write_run


@pytest.fixture
def sweep(tmp_path):
    """Writes a sweep of runs with the given settings."""

    def write(name, *settings):
        for each in settings:
            write_run(tmp_path / name, each, steps=1)
        return tmp_path / name

    return write


def paired(a, b):
    return pair(*read_sides(a, b))


def grid(norms, seeds):
    return [{"norm": norm, "seed": seed} for norm in norms for seed in seeds]


def test_variants_are_matched_and_their_runs_by_seed(sweep):
    found = paired(
        sweep("a", *grid(["pre", "post"], [0, 1])), sweep("b", *grid(["pre"], [1, 0, 2]))
    )
    (cell,) = found.cells
    assert cell.variant == {"norm": "pre"} and cell.label == "norm=pre" and cell.is_paired
    assert sorted(cell.seeds) == ["0", "1"]
    for seed, a, b in zip(cell.seeds, cell.a, cell.b, strict=True):
        assert str(a.row["seed"]) == str(b.row["seed"]) == seed
        assert a.row["norm"] == b.row["norm"] == "pre"
    assert found.unmatched == ["norm=post is only in a", "seed 2 of pre is only in b"]


def test_seeds_that_only_one_side_has_are_named_without_a_variant_where_there_is_one(sweep):
    found = paired(sweep("a", *grid(["pre"], [0, 1])), sweep("b", *grid(["pre"], [1, 2])))
    assert found.cells[0].variant == {} and found.cells[0].label == ""
    assert found.unmatched == ["seed 0 is only in a", "seed 2 is only in b"]


def test_two_single_runs_are_a_pair_whatever_their_seeds(sweep):
    found = paired(sweep("a", {"seed": 0}), sweep("b", {"seed": 7}))
    (cell,) = found.cells
    assert (len(cell.a), len(cell.b), cell.seeds, found.unmatched) == (1, 1, ("0",), [])


def test_without_a_common_seed_the_samples_are_independent(sweep):
    found = paired(sweep("a", *grid(["pre"], [0, 1])), sweep("b", *grid(["pre"], [2, 3, 4])))
    (cell,) = found.cells
    assert not cell.is_paired and (len(cell.a), len(cell.b)) == (2, 3) and not found.unmatched


def test_without_a_common_variant_nothing_is_compared(sweep):
    a, b = sweep("a", *grid(["pre", "post"], [0])), sweep("b", *grid(["peri", "none"], [0]))
    with pytest.raises(Unreadable, match="no variant has a partner by norm: a has 2 and b has 2"):
        paired(a, b)


def test_one_seed_several_times_is_matched_by_folder_or_refused(sweep):
    both = [{"seed": 0, "train.lr": 0.1}, {"seed": 0, "train.lr": 0.2}]
    a, b = sweep("a", *both), sweep("b", *both)
    for folder in (*a.iterdir(), *b.iterdir()):  # as if nothing but the folders told them apart
        config = folder / "config.yaml"
        config.write_text(config.read_text().replace("lr: 0.2", "lr: 0.1"))
    found = paired(a, b)
    assert [x.path.name for x in found.cells[0].a] == [x.path.name for x in found.cells[0].b]
    for number, folder in enumerate(sorted(b.iterdir())):
        folder.rename(b / f"other{number}")
    with pytest.raises(Unreadable, match=r"ambiguous: of the runs, which no seed .* a has 2 and b"):
        paired(a, b)


def test_a_folder_of_several_sweeps_is_refused(sweep, tmp_path):
    sweep("a", {"seed": 0})
    b = sweep("b", {"seed": 0})
    with pytest.raises(Unreadable, match="holds 2 sweeps"):
        paired(tmp_path, b)


def test_sides_have_as_many_parts_of_their_paths_as_tell_them_apart(sweep):
    sides = read_sides(sweep("x/s", {"seed": 0}), sweep("y/s", {"seed": 0}))
    assert [side.name for side in sides] == ["x/s", "y/s"]
    same = read_sides(sides[0].path, sides[0].path)
    assert [side.name for side in same] == ["s (A)", "s (B)"]


def test_unfinished_and_damaged_runs_are_remarked(sweep):
    a = sweep("a", {"seed": 0}, {"seed": 1})
    write_run(a, {"seed": 2}, steps=1, status="interrupted")
    damaged = write_run(a, {"seed": 3}, steps=1)
    (damaged / "run.json").write_text("{")
    side, _ = read_sides(a, a)
    assert len(side.runs) == 3
    assert any(remark.startswith(f"left out {damaged.name}: ") for remark in side.remarks)
    assert any("interrupted" in remark for remark in side.remarks)


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "none"), (float("nan"), "none"), (0.1, "0.1"), (1e-5, "1e-05"), (3, "3"), ("a", "a")],
)
def test_values_are_written_as_they_would_be_typed(value, said):
    assert text(value) == said
