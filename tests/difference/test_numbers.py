"""Numbers of two sides beside each other."""

import math

import pytest
from scipy import stats

from stability.difference.numbers import Stat, last_common_step, table
from stability.difference.pairing import pair, read_sides
from stability.results.atomic import Unreadable
from stability.results.parquet import read
from synthetic import write_run

VARIANCE = Stat("act", "var")


def compared(a, b, stat=VARIANCE):
    sides = read_sides(a, b)
    cells = pair(*sides).cells
    steps = [last_common_step(cell, *sides) for cell in cells]
    return table(cells, steps, stat), steps


def write(sweep, seeds, norm="pre", **options):
    for seed in seeds:
        write_run(sweep, {"norm": norm, "seed": seed}, **options)
    return sweep


def losses(sweep, step):
    """Seed -> loss at a step, from the tables."""
    found = {}
    for folder in (file.parent for file in sweep.glob("*/run.json")):
        rows = read(folder, "steps", ["step", "loss"]).to_pandas().set_index("step")
        found[int(folder.name.split("seed-")[1].split("_")[0])] = rows.loc[step, "loss"]
    return found


def row(frame, number):
    (found,) = frame[frame["number"] == number].to_dict("records")
    return found


def test_pairs_have_students_interval(tmp_path):
    a, b = write(tmp_path / "a", range(4)), write(tmp_path / "b", range(4), "post")
    frame, (step,) = compared(a, b)
    found, (x, y) = row(frame, "loss"), (losses(side, step) for side in (a, b))
    differences = [y[seed] - x[seed] for seed in range(4)]
    low, high = stats.t.interval(0.95, 3, loc=sum(differences) / 4, scale=stats.sem(differences))
    assert found["difference"] == pytest.approx(sum(differences) / 4)
    assert (found["low"], found["high"]) == pytest.approx((low, high))
    assert (found["pairs"], found["paired"], found["step"]) == (4, True, step)
    assert (found["a"], found["b"]) == pytest.approx((sum(x.values()) / 4, sum(y.values()) / 4))


def test_seeds_without_a_partner_have_welchs_interval(tmp_path):
    a, b = write(tmp_path / "a", range(3)), write(tmp_path / "b", range(5, 9), "post")
    frame, (step,) = compared(a, b)
    found = row(frame, "loss")
    x, y = (list(losses(side, step).values()) for side in (a, b))
    test = stats.ttest_ind(y, x, equal_var=False)
    error = (sum(y) / 4 - sum(x) / 3) / test.statistic
    half = stats.t.ppf(0.975, math.floor(test.df)) * error
    assert found["high"] - found["difference"] == pytest.approx(half)
    assert found["difference"] - found["low"] == pytest.approx(half)
    assert (found["pairs"], found["paired"]) == (3, False)


def test_one_pair_has_no_interval(tmp_path):
    frame, _ = compared(write(tmp_path / "a", [0]), write(tmp_path / "b", [0], "post"))
    found = row(frame, "loss")
    assert math.isnan(found["low"]) and math.isnan(found["high"])
    assert found["difference"] == pytest.approx(found["b"] - found["a"]) != 0


def test_the_step_is_the_last_that_all_runs_recorded_and_ends_have_none(tmp_path):
    a = write(tmp_path / "a", [0, 1], steps=41, every=20)
    b = write(tmp_path / "b", [0, 1], "post", steps=31, every=20)
    frame, steps = compared(a, b)
    assert steps == [20]  # recorded at 0, 20, 40 and at 0, 20, 30
    assert set(frame[~frame["number"].str.startswith("final_")]["step"]) == {20}
    assert frame[frame["number"].str.startswith("final_")]["step"].isna().all()


def test_without_a_common_recorded_step_nothing_is_compared(tmp_path):
    a = write_run(tmp_path / "a", {"seed": 0}, steps=3, every=1)
    b = write_run(tmp_path / "b", {"seed": 0}, steps=3, every=1)
    for file in b.glob("layers.parquet"):
        file.unlink()
    with pytest.raises(Unreadable):
        compared(a, b)


def test_the_chosen_statistic_is_given_at_three_blocks(tmp_path):
    a, b = write(tmp_path / "a", [0, 1]), write(tmp_path / "b", [0, 1], "post")
    of = [set(compared(a, b, stat)[0]["number"]) for stat in (VARIANCE, Stat("grad", "absmax"))]
    places = ("first", "middle", "last")
    assert of[0] - of[1] == {f"act_var/{place}" for place in places}
    assert of[1] - of[0] == {f"grad_absmax/{place}" for place in places}


def test_numbers_that_are_not_finite_are_left_out_of_pairs(tmp_path):
    a = write(tmp_path / "a", [0, 1, 2], steps=21)
    b = write(tmp_path / "b", [0, 1], "post", steps=21)
    write_run(b, {"norm": "post", "seed": 2}, steps=21, bad_step=20)
    frame, (step,) = compared(a, b)
    assert step == 20
    found = row(frame, "loss")
    assert found["pairs"] == 2 and math.isfinite(found["difference"])
    x = losses(a, 20)
    assert found["a"] == pytest.approx((x[0] + x[1]) / 2)


@pytest.mark.parametrize("wrong", ["act", "act.nope", "nope.var", "weight.rms", "act.numel"])
def test_an_unknown_statistic_is_refused_with_what_is_legal(wrong):
    with pytest.raises(Unreadable, match=r"must be KIND\.COLUMN, KIND one of act, grad"):
        Stat.parse(wrong)


def test_a_statistic_is_read_as_it_is_written():
    assert Stat.parse("grad.token_rms_median") == Stat("grad", "token_rms_median")
    assert str(Stat.parse("act.var")) == "act.var"
