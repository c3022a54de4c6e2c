"""The plot command draws what it can, says what it cannot and why, and signs every figure."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import stability
from stability import figures
from stability.figures import variance
from stability.plot import main
from stability.theory.run_theory import theory_of_run
from synthetic import numbers, write_run, write_sweep

FEW = ["--figures", "variance,loss,depth_ratio"]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    write_sweep(tmp_path / "sweep", {"norm": ["pre", "post"], "seed": [0, 1]}, steps=11, every=5)
    return tmp_path / "sweep"


def written(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def test_each_figure_comes_as_pdf_png_numbers_and_origin(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(sweep), *FEW]) == 0
    names = {f"{n}.{e}" for n in ("variance", "loss") for e in ("pdf", "png", "csv", "json")}
    assert written(sweep / "figures") == {*names, "index.html"}
    said = capsys.readouterr().out
    assert "4 runs, what varies: norm" in said
    assert "depth_ratio" in said and "skipped: depth does not vary" in said
    drawn = pd.read_csv(sweep / "figures" / "variance.csv")
    wanted = numbers(sweep, variance).frame
    pd.testing.assert_series_equal(drawn["value"], wanted["value"])
    assert list(drawn) == [*wanted, "source"] and set(drawn["source"]) == {"measured"}


@pytest.fixture
def predictable(sweep: Path) -> Path:
    """A sweep whose runs kept their first batch, so that theory can follow its tokens."""
    for run in sweep.iterdir():
        x_BT = np.random.default_rng(0).integers(0, 97, (2, 8))
        np.savez(run / "batch0.npz", x=x_BT, y=x_BT)
    return sweep


def test_theory_at_init_is_drawn_and_written_beside_what_was_measured(predictable: Path) -> None:
    assert main([str(predictable), "--figures", "variance,gradient"]) == 0
    drawn = pd.read_csv(predictable / "figures" / "variance.csv").set_index("source")
    theory = drawn.loc["theory"]
    assert set(theory["when"]) == {"at init"} and set(theory["norm"]) == {"pre", "post"}
    run = stability.load(predictable, "runs").query("norm == 'post' and seed == 0")["folder"]
    predicted = theory_of_run(predictable / run.item()).query("kind == 'act' and layer >= 0")
    wanted = predicted.query("site == 'resid_post' and sublayer == 'mlp'")["var"]
    drawn = theory.query("norm == 'post' and x > 0").sort_values("x")["value"]
    np.testing.assert_allclose(drawn, wanted, rtol=1e-9)
    assert len(list((predictable / "figures" / "theory").iterdir())) == 2  # seeds share a batch


def test_theory_can_be_left_out_and_belongs_to_step_0_alone(predictable: Path) -> None:
    for option in (["--no-theory"], ["--at", "5"]):
        assert main([str(predictable), "--figures", "variance", *option]) == 0
        assert "source" not in pd.read_csv(predictable / "figures" / "variance.csv")
        assert not (predictable / "figures" / "theory").exists()


def test_a_class_from_elsewhere_has_no_theory_unless_it_is_allowed(
    predictable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere.py").write_text("from stability.parts.placements import Post as Mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for file in predictable.glob("norm-post*/config.yaml"):
        text = file.read_text()
        assert "stability.parts.placements.Post" in text
        file.write_text(text.replace("stability.parts.placements.Post", "elsewhere.Mine"))
    seen = {}
    for allowed in ([], ["--allow", "elsewhere"]):
        # A process of its own, as what is allowed stays so.
        path = os.pathsep.join([str(tmp_path), *sys.path])
        command = [sys.executable, "-m", "stability.plot", str(predictable)]
        done = subprocess.run(
            [*command, "--figures", "variance", *allowed],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        drawn = pd.read_csv(predictable / "figures" / "variance.csv")
        norms = set(drawn.loc[drawn["source"] == "theory", "norm"])
        seen[bool(allowed)] = norms, "no theory for 1 of 2 variants" in done.stdout
    assert seen == {False: ({"pre"}, True), True: ({"pre", "post"}, False)}


def test_a_figure_names_its_command_runs_revision_seeds_and_data(sweep: Path) -> None:
    assert main([str(sweep), "--figures", "variance"]) == 0
    facts = json.loads((sweep / "figures" / "variance.json").read_text())
    runs = stability.load(sweep, "runs")
    assert facts["command"] == f"python -m stability.plot {sweep} --figures variance"
    assert facts["runs"] == sorted(runs["run"]) and facts["seeds"] == 2
    assert facts["git"] == ["abc1234"] and facts["data_sha256"] == ["d" * 64]
    assert facts["statuses"] == {"completed": 4} and facts["warnings"] == []
    pdf = (sweep / "figures" / "variance.pdf").read_bytes()
    for text in ("/Title (Variance of the residual stream", "stability.plot", *facts["runs"]):
        assert text.encode() in pdf
    with Image.open(sweep / "figures" / "variance.png") as png:
        assert json.loads(png.info["Description"]) == facts


def test_fonts_are_embedded_as_type_42_and_the_same_runs_give_the_same_bytes(sweep: Path) -> None:
    seen = []
    for _ in range(2):
        assert main([str(sweep), "--figures", "loss", "--format", "pdf"]) == 0
        seen.append((sweep / "figures" / "loss.pdf").read_bytes())
    assert seen[0] == seen[1]
    assert b"/FontFile2" in seen[0] and b"/Type3" not in seen[0]


@pytest.mark.parametrize("width", ["3.25", "5.5", "6.75"])
def test_the_width_is_the_one_asked_for(sweep: Path, width: str) -> None:
    assert main([str(sweep), "--figures", "variance", "--format", "png", "--width", width]) == 0
    with Image.open(sweep / "figures" / "variance.png") as png:
        assert png.width == pytest.approx(float(width) * 200, abs=1)
    assert written(sweep / "figures") == {
        "index.html",
        "variance.png",
        "variance.csv",
        "variance.json",
    }


def test_at_draws_the_step_asked_for_and_says_who_lacks_it(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(sweep, {"norm": "none"}, steps=5, every=4)
    assert main([str(sweep), "--figures", "variance", "--at", "5"]) == 0
    drawn = pd.read_csv(sweep / "figures" / "variance.csv")
    assert set(drawn["when"]) == {"at step 5"} and set(drawn["norm"]) == {"pre", "post"}
    facts = json.loads((sweep / "figures" / "variance.json").read_text())
    assert facts["warnings"] == ["1 of 5 runs have no step 5"]
    assert "1 of 5 runs have no step 5" in capsys.readouterr().out
    assert main([str(sweep), "--at", "3"]) == 2
    assert "recorded are 0, 4, 5, 10" in capsys.readouterr().err


def test_every_sweep_below_the_path_is_drawn_to_its_own_folder(sweep: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "other", {"norm": "pre"}, steps=2)
    only = ["--figures", "variance", "--format", "png"]
    assert main([str(tmp_path), *only]) == 0
    assert (sweep / "figures" / "variance.png").exists()
    assert (tmp_path / "other" / "figures" / "variance.png").exists()
    assert main([str(tmp_path), *only, "--out", str(tmp_path / "paper")]) == 0
    assert written(tmp_path / "paper") == {"sweep", "other"}
    run = next(p for p in (tmp_path / "other").iterdir() if (p / "run.json").exists())
    assert main([str(run), *only]) == 0
    assert (run / "figures" / "variance.png").exists()
    assert len(stability.load(tmp_path, "runs")) == 5


def test_figures_that_mix_data_and_runs_still_going_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, {"norm": "pre"}, data_hash="a" * 64)
    write_run(tmp_path, {"norm": "post"}, data_hash="b" * 64, status="running")
    assert main([str(tmp_path), "--figures", "variance"]) == 0
    said = capsys.readouterr().out
    assert "mixes 2 data sets" in said and "1 of 2 runs running" in said
    facts = json.loads((tmp_path / "figures" / "variance.json").read_text())
    assert len(facts["data_sha256"]) == 2 and len(facts["warnings"]) == 2


def test_damaged_runs_are_named_and_the_rest_is_drawn(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = next(p for p in sweep.iterdir() if "pre" in p.name)
    (bad / "run.json").write_text("{")
    assert main([str(sweep), "--figures", "variance", "--format", "png"]) == 0
    assert f"left out {bad.name}" in capsys.readouterr().out


REFUSED = {
    "missing": ["{}/nowhere"],
    "empty": ["{}/empty"],
    "foreign": ["{}/foreign"],
    "a file": ["{}/foreign/notes.txt"],
    "damaged": ["{}/damaged"],
    "unknown figure": ["{}/good", "--figures", "variance,varience"],
    "nothing to draw": ["{}/good", "--figures", "depth_ratio"],
    "output is a file": ["{}/good", "--figures", "variance", "--out", "{}/foreign/notes.txt"],
    "no rows yet": ["{}/young"],
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    for name in ("empty", "foreign"):
        (tmp_path / name).mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("x")
    write_run(tmp_path / "good", {"norm": "pre"}, steps=1)
    write_run(tmp_path / "young", {"norm": "pre"}, rows=False, status="running")
    (write_run(tmp_path / "damaged", {"norm": "pre"}, steps=1) / "run.json").write_text("{")
    assert main([a.format(tmp_path) for a in REFUSED[case]]) == 2
    said = capsys.readouterr().err
    assert said.startswith("stability.plot: ") and 1 <= said.count("\n") <= 2
    assert "Traceback" not in said
    assert not list(tmp_path.glob("*/figures/*.p*"))


UNKNOWN = {
    "--format gif": "gif",
    "--width 4": "3.25, 5.5, 6.75",
    "--at x": "invalid int value: 'x'",
    "--no": "--no: no such option",
    "--watch 0": "'0' must be a whole number of seconds",
    "--figures variance loss": "loss: several names are one word: A,B",
}


@pytest.mark.parametrize("words", UNKNOWN)
def test_unknown_words_are_refused_in_a_line(
    sweep: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([str(sweep), *words.split()])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("stability.plot: ") and error.count("\n") == 1
    assert UNKNOWN[words] in error


def test_plotting_needs_neither_torch_nor_hydra(sweep: Path) -> None:
    code = (
        "import sys; from stability.plot import main; "
        f"rc = main([{str(sweep)!r}, '--figures', 'variance', '--format', 'png']); "
        "heavy = {'torch', 'hydra', 'omegaconf', 'matplotlib.pyplot'} & set(sys.modules); "
        "sys.exit(rc or (str(heavy) if heavy else 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_the_help_names_every_figure_in_one_piece(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        main(["--help"])
    said = re.findall(r"\w+", capsys.readouterr().out)
    assert set(figures.modules()) <= set(said)


def test_a_sweep_of_one_is_one_run_in_which_nothing_varies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "sweep", {"norm": "pre"}, steps=1)
    assert main([str(tmp_path / "sweep"), "--figures", "variance"]) == 0
    assert f"{tmp_path / 'sweep'}: 1 run\n" in capsys.readouterr().out


def test_it_draws_again_when_runs_have_gone_on_until_ctrl_c(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four looks: a first one, nothing new, a new run, Ctrl-C."""
    looks: list[int] = []

    def sleep(seconds: int) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            write_run(sweep, {"norm": "peri"}, steps=1)
        if len(looks) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("stability.plot.time.sleep", sleep)
    words = [str(sweep), "--figures", "variance", "--format", "png", "--no-theory", "--watch", "7"]
    assert main(words) == 130
    assert looks == [7] * 4
    printed = capsys.readouterr().out
    assert printed.count("all in a page") == 2
    assert ": 4 runs" in printed and ": 5 runs" in printed
    page = (sweep / "figures" / "index.html").read_text()
    assert '<meta http-equiv="refresh" content="7">' in page


def test_a_folder_without_runs_is_watched_until_it_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: list[int] = []

    def sleep(seconds: int) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt
        write_run(tmp_path / "s", {"norm": "pre"}, steps=1)

    monkeypatch.setattr("stability.plot.time.sleep", sleep)
    words = ["--figures", "variance", "--format", "png", "--no-theory", "--watch", "1"]
    assert main([str(tmp_path), *words]) == 130
    said = capsys.readouterr()
    assert "holds no run" in said.err or "no run" in said.err
    assert (tmp_path / "s" / "figures" / "variance.png").exists()
