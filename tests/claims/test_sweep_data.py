"""What is read from a sweep and predicted for it."""

import numpy as np
import pandas as pd
import pytest

from law_sweeps import LINEAR, noisy, write_sweep
from stability.claims import sweep_data
from stability.claims.claim import Choose, Clear
from stability.claims.measures import measures
from stability.claims.sweep_data import NoRuns, SweepData, by_setting, select
from stability.results.sweep_rows import SweepRows


def test_behind_a_saturated_softmax_there_is_no_theory_and_no_overflow(tmp_path, monkeypatch):
    rows = pd.DataFrame(
        [(0, "mlp", "resid_post", "grad", 8, 1.0, 1.0, 1.0, 0.1, True)],
        columns=[
            *("layer", "sublayer", "site", "kind", "numel"),
            *("var", "rms", "token_rms_median", "first_share", "saturated"),
        ],
    )  # fmt: skip
    monkeypatch.setattr(sweep_data, "theory_of_run", lambda folder, cache: rows)
    runs = pd.DataFrame({"run": ["a"], "folder": ["a"]})
    predicted = SweepData(tmp_path)._predicted(runs)
    assert predicted[sweep_data.SIZES].isna().all(axis=None)
    assert predicted["nonfinite"].tolist() == [0]


RUNS = pd.DataFrame(
    {
        "run": list("abcd"), "depth": [6, 6, 24, 24], "norm": ["pre", "post", "pre", "post"],
        "loss_scale": ["none", "1e3", "1000.0", None], "status": "completed", "seed": [0, 0, 0, 1],
        "learned": [True, False, True, None], "final_val_loss": [2.0, 1.0, 3.0, None],
    }
)  # fmt: skip


@pytest.fixture
def sweep(tmp_path):
    data = SweepData(tmp_path / "q")
    data._runs = SweepRows(RUNS.copy())
    return data


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({}, "abcd"),
        ({"norm": ["pre"]}, "ac"),
        ({"depth": [6], "norm": ["post"]}, "b"),
        ({"depth": ["24.0"]}, "cd"),
        ({"depth": [6, 24]}, "abcd"),
        ({"loss_scale": [1000]}, "bc"),
        ({"loss_scale": [None]}, "d"),
        ({"nowhere": [1]}, ""),
    ],
)
def test_runs_are_chosen_by_their_config_as_numbers_or_else_as_texts(where, kept):
    assert "".join(select(RUNS, where)["run"]) == kept


def test_settings_are_named_by_option_or_by_the_keys_last_part():
    runs = RUNS.rename(columns={"depth": "model.width"})
    found = [(names, "".join(some["run"])) for names, some in by_setting(runs, ["norm"])]
    assert found == [(["post"], "bd"), (["pre"], "ac")]
    found = [" ".join(names) for names, _ in by_setting(runs, ["model.width", "norm"])]
    assert found == ["width=6 post", "width=6 pre", "width=24 post", "width=24 pre"]
    runs["eps"] = [1e-8, None, None, 1e-8]  # an optimizer without eps
    found = [(names, "".join(some["run"])) for names, some in by_setting(runs, ["eps"])]
    assert found == [(["eps=1e-08"], "ad"), (["eps=none"], "bc")]
    ((names, some),) = by_setting(runs, [])
    assert (names, len(some)) == ([], 4)


def test_only_the_combinations_that_runs_have_are_settings():
    runs = RUNS.iloc[[0, 3]].assign(norm=pd.Categorical(["pre", "post"], ["none", "pre", "post"]))
    found = [(names, "".join(some["run"])) for names, some in by_setting(runs, ["norm", "depth"])]
    assert found == [(["pre", "depth=6"], "a"), (["post", "depth=24"], "d")]


def test_runs_that_are_not_finished_do_not_count(sweep):
    sweep.runs["status"] = ["completed", "diverged", "running", "failed"]
    assert sweep.finished({})["run"].tolist() == ["a", "b"]
    with pytest.raises(NoRuns, match=r"no finished run of q with depth=24,48 norm=pre$"):
        sweep.finished({"depth": [24, 48], "norm": ["pre"]})
    sweep.runs["status"] = "running"
    with pytest.raises(NoRuns, match=r"no finished run of q$"):
        sweep.finished({})


@pytest.mark.parametrize(
    ("where", "found"),
    [({"norm": ["post"]}, "0 of 2"), ({"depth": [6]}, "1 of 2"), ({"depth": [7]}, "0 of 0")],
)
def test_a_reference_counts_where_all_its_runs_have_learned(sweep, where, found):
    sweep.require_learned({"norm": ["pre"]})
    with pytest.raises(NoRuns, match=f"has not learned: {found} runs have"):
        sweep.require_learned(where)


def test_the_best_value_has_the_lowest_mean_loss_and_a_missing_loss_is_the_worst(sweep):
    assert sweep.best(Choose("depth", {})) == 6
    assert sweep.best(Choose("depth", {"norm": ["post"]})) == 6
    sweep.runs["final_val_loss"] = [2.0, None, 3.0, 4.0]
    assert sweep.best(Choose("depth", {})) == 24
    with pytest.raises(NoRuns, match="no run of q with depth=7 to choose by"):
        sweep.best(Choose("depth", {"depth": [7]}))


def test_rows_are_of_the_runs_asked_for_and_of_their_own_first_or_last_step(sweep):
    rows = pd.DataFrame({"run": list("aaabbc"), "step": [0, 1, 2, 1, 3, 0]})
    sweep._tables = {"layers": rows, "steps": rows}
    mine = RUNS[:2]

    def found(table, at):
        kept = sweep.rows(table, mine, at)
        return list(zip(kept["run"], kept["step"], strict=True))

    assert found("layers", "init") == [("a", 0), ("b", 1)]
    assert found("layers", "end") == [("a", 2), ("b", 3)]
    assert found("layers", "all") == [("a", 0), ("a", 1), ("a", 2), ("b", 1), ("b", 3)]
    assert found("steps", "init") == found("layers", "all")
    assert sweep.rows("runs", mine, "end") is mine


def test_a_measure_is_clear_where_its_mean_exceeds_its_errors_at_every_depth(tmp_path):
    def drift(scale):
        return noisy(lambda n: n * scale, 0.2)

    by_depth = {4: drift(1.0), 8: drift(1.0)}
    data = SweepData(write_sweep(tmp_path, "q", by_depth, axis="depth"))
    runs = data.runs
    values = list(
        data.per_seed(measures()["increment"], {}, runs[runs["depth"] == 4], "init")[0].values()
    )
    ratio = np.mean(values) / (np.std(values, ddof=1) / np.sqrt(len(values)))
    runs = runs[runs["depth"] == 4]
    clear = Clear(measures()["increment"], 0.99 * ratio)
    assert data.unclear(clear, runs, "init") == ""
    unclear = Clear(measures()["increment"], 1.01 * ratio)
    assert "standard errors of 0 at depth 4" in data.unclear(unclear, runs, "init")
    assert data.unclear(Clear(measures()["increment"], 0), runs[:1], "init") != ""


def test_seeds_without_a_number_are_counted_by_reason(tmp_path):
    data = SweepData(write_sweep(tmp_path, "q", LINEAR, seeds=range(3)))
    given = {"least_growth": 1e9}
    found = data.per_seed(measures()["growth_exponent"], given, data.runs, "init")
    assert found.values == {}
    (reason,) = found.reasons
    assert reason.startswith("3 of 3 seeds left out: variance grows ")
    found = data.per_seed(measures()["increment"], {}, data.runs, "init")
    assert list(found.values) == [0, 1, 2]
    assert found.values[0] == pytest.approx(0.4 * 12)
    assert found.reasons == []


def test_a_number_that_is_not_finite_is_no_number(tmp_path):
    laws = {6: LINEAR, 12: noisy(lambda n: 0.0 * n)}
    data = SweepData(write_sweep(tmp_path, "q", laws, axis="depth", seeds=[0]))
    given = {"axis": "depth", "of": 6, "to": 12}
    found = data.per_seed(measures()["last_ratio"], given, data.runs, "init")
    assert found == ({}, ["1 of 1 seeds left out: last_ratio is inf"])


def test_theory_is_of_the_first_seed_and_of_measures_of_layers_alone(tmp_path, monkeypatch):
    data = SweepData(write_sweep(tmp_path, "q", LINEAR, seeds=range(3)))
    asked = []

    def predicted(folder, cache):
        asked.append(folder.name)
        places = {"layer": [-1, 0], "sublayer": ["embed", "mlp"], "site": "resid_post"}
        sizes = {name: [1.0, 4.0] for name in sweep_data.SIZES}
        return pd.DataFrame({**places, "kind": "act", "numel": 8, **sizes, "saturated": False})

    monkeypatch.setattr(sweep_data, "theory_of_run", predicted)
    assert data.theory(measures()["increment"], {}, data.runs) == (3.0, "")
    first = data.runs[data.runs["seed"] == 0]
    assert asked == first["folder"].tolist()
    for name in ("evaluation_gap", "first_overflow", "final_loss", "share_of_norm_product"):
        assert data.theory(measures()[name], {}, data.runs) == (None, "")
    assert len(asked) == 1
    assert data.theory(measures()["increment"], {}, data.runs[:0]) == (None, "")
    given = {"least_growth": 1e9}
    value, reason = data.theory(measures()["growth_exponent"], given, data.runs)
    assert value is None
    assert reason.startswith("variance grows ")
