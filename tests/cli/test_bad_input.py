"""Bad input is refused in a line that names the key, the value and what is legal."""

import ast
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from planning import planned, write
from stability import run
from stability.cli import launch
from stability.cli.refusal_text import MAX_LENGTH, REFUSALS, explain
from stability.config.knobs import GROUPS, KNOBS, Config
from stability.results import index
from stability.sweep import grid, worker


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "run_cells", lambda cells, *_: check(cells))


def check(cells):
    """As in a process of its own, and without going on to run anything."""
    worker.check([cell.config for cell in cells])
    return 0


CASES = [
    # misspelt options and keys
    ("norm=prre", "norm=prre: must be one of deepnorm,", "did you mean pre?"),
    ("model=gtp2", "model=gtp2: must be one of", "did you mean gpt2?"),
    ("nrom=pre", "nrom=pre: unknown key; did you mean norm?"),
    ("depht=6,7", "depht=6,7: unknown key; did you mean depth?"),
    ("lr=1e-3", "lr=1e-3: unknown key; did you mean train.lr?"),
    ("train.lrr=1", "train.lrr=1: unknown key; did you mean train.lr"),
    ("experiment=vanishing", "unknown key; did you mean experiments?"),
    ("dtype=float16", "must be one of fp64, fp32,", "did you mean fp16?"),
    ("init=he", "must be one of", "did you mean kaiming?"),
    ("norm_type=LayerNorm", "did you mean layernorm?"),
    ("experiments=warmup", "is none of the", "did you mean warmup_changes, post_needs_warmup"),
    ("+foo=1", "foo=1: unknown key"),
    ("+norm=post", "+norm=post: leave out the '+'"),
    ("norm@elsewhere=pre", "norm@elsewhere=pre: unknown key"),
    ("norm.build.x=1", "norm.build.x=1: is not there yet; +norm.build.x=1 adds it"),
    ("+norm.build.x=1", "norm.build.x=1: Pre takes nothing"),
    ("+choices={norm: pre}", "choices={norm: pre}: unknown key"),
    ("norm=null", "norm=null: must be one of deepnorm,"),
    ("norm=glob(x*)", "norm=glob(x*): gives no values"),
    ("experiments='null'", "experiments='null': must be one of"),
    ("experiments=qqq", "experiments=qqq: must be one of"),
    # wrong types
    ("depth=abc", "depth=abc: must be a whole number, 1 to 10,000"),
    ("depth=6.5", "depth=6.5: must be a whole number, 1 to 10,000"),
    ("depth=[6]", "depth=[6]: must be a whole number"),
    ("depth=null", "depth=null: must be a whole number, 1 to 10,000"),
    ("train.lr=fast", "train.lr=fast: must be a number, >= 0"),
    ("model.bias=perhaps", "model.bias=perhaps: must be true or false"),
    ("record.kinds=act", "must be a list", "a list of one is written record.kinds=[act]"),
    ("allow=[[a]]", "allow=[[a]]: must be a list, each value a word"),
    ("optimizer.betas=[a,b]", "optimizer.betas=[a,b]: must be unset, or two numbers"),
    ("train={lrr: 1}", "train.lrr=1: unknown key; did you mean train.lr"),
    ("norm.build={_target_: a},{_target_: b}", "a group of keys takes one value"),
    ("train=5", "train=5: must be a group of keys"),
    ("depth=${nope}", "depth: Interpolation key 'nope' not found"),
    ("depth=???", "depth: Missing mandatory value"),
    # out of range
    ("depth=0", "depth=0: must be 1 to 10,000"),
    ("depth=99999999999999999999", "must fit into 64 bits"),
    ("train.lr=-1", "train.lr=-1.0: must be >= 0"),
    ("train.lr=nan", "train.lr=nan: must be >= 0"),
    ("record.every=0", "record.every=0: must be 1 to 1,000,000,000"),
    ("threads=100000", "threads=100000: must be 1 to 1,024"),
    ("n_jobs=1.5", "n_jobs=1.5: must be auto or a whole number, 1 to 1,024"),
    ("shard=4/3", "shard=4/3: must be unset, or i/n with 1 <= i <= n"),
    ("dtype=fp33", "dtype=fp33: must be one of fp64, fp32"),
    ("model.heads=3", "model.heads=3: must divide model.width=64"),
    ("train.warmup_steps=999", "train.warmup_steps=999: must be <= train.steps="),
    ("model.context=99999999", "model.context=99999999: must be <"),
    ("depth=6,24,0", "depth=0: must be 1 to 10,000"),
    # keys without effect
    ("init.std=0.1", "init.std=0.1: has no effect: init=xavier has no std"),
    ("data.path=/x", "data.path=/x: has no effect"),
    # what cannot be swept, and empty grids
    ("train.steps=1,2", "train.steps=1,2: takes one value"),
    ("out=a,b", "out=a,b: takes one value"),
    ("name=a,b", "name=a,b: takes one value"),
    ("hydra/launcher=basic n_jobs=2", "n_jobs=2: has no effect: hydra/launcher=basic"),
    ("device=cpu,cuda", "device=cpu,cuda: takes one value"),
    ("experiments=a,b", "experiments=a,b: takes one"),
    ("depth=range(5,5)", "depth=range(5,5): gives no values"),
    ("depth=range(0,9,0)", "depth=range(0,9,0): gives no values"),
    (
        "depth=interval(1,2)",
        "depth=interval(1,2): a grid takes values and ranges",
    ),
    ("seed=range(0,99999999999)", "grid=10001 runs: a sweep has at most 10000"),
    # Hydra's own keys
    ("hydra.mode=RUN", "hydra.mode=RUN: of Hydra's own keys only"),
    ("hydra/sweeper=basic", "hydra/sweeper=basic: of Hydra's own keys only"),
    ("hydra/launcher=nope", "hydra/launcher=nope: must be one of basic, procs"),
    ("hydra.sweep.dir=/tmp/x", "out=FOLDER and name=NAME say where runs go"),
    ("hydra=1", "hydra=1: of Hydra's own keys only those of hydra/launcher can be set"),
    ("+hydra.callbacks.x={_target_: tempfile.mkdtemp}", "of Hydra's own keys only"),
    ("+hydra.job_logging.handlers.x={class: tempfile.mkdtemp}", "of Hydra's own keys only"),
    ("hydra/job_logging=default", "of Hydra's own keys only"),
    ("hydra.output_subdir=x", "of Hydra's own keys only"),
    ("hydra.searchpath=[/tmp]", "of Hydra's own keys only"),
    ("hydra.launchers=1", "of Hydra's own keys only"),
    ("hydra.launcher.x=1", "hydra.launcher.x=1: has no effect: hydra/launcher=procs"),
    (
        "hydra/launcher=basic hydra.launcher.x=1",
        "hydra.launcher.x: Key 'x' not in 'BasicLauncherConf'",
    ),
    (
        "hydra/launcher=basic hydra.launcher._target_=os.system",
        "hydra.launcher._target_=os.system: hydra/launcher=NAME",
    ),
    (
        "hydra/launcher=basic +hydra.launcher.x={_target_:os.getcwd}",
        "hydra.launcher.x._target_=os.getcwd: hydra/lau",
    ),
    (
        "hydra/launcher=basic +hydra.launcher.x=[{a:{_target_:os.getcwd}}]",
        "hydra.launcher.x=[{'a': {'_target_': 'os.getcwd'}}]: hydra/launcher=NAME",
    ),
    (
        "hydra/launcher=basic +hydra.launcher.x=${norm.build}",
        "hydra.launcher.x._target_=stability.parts.placements.Pre",
    ),
    ("hydra/launcher=1", "hydra/launcher=1: must be one of"),
    ("hydra/launcher=basic,procs", "hydra/launcher=basic,procs: takes one"),
    ("record.kinds=[[act]]", "record.kinds=[[act]]: must be a list of distinct names"),
    ("shard=1/2", "shard=1/2: needs name=NAME: without it each shard makes a sweep of its own"),
    # names, devices, folders
    ("name=../x", "name=../x: must be unset, or letters"),
    ("name=.hidden", "name=.hidden: must be unset, or letters"),
    ("name=a/b", "name=a/b: must be unset, or letters"),
    ("norm=../config", "norm=../config: must be one of"),
    ("norm=/pre", "norm=/pre: must be one of"),
    ("norm=pre,../config", "norm=pre,../config: must be one of"),
    ("norm=1,2", "norm=1,2: must be one of"),
    ("norm=range(3)", "norm=range(3): must be one of"),
    ("out=/dev/null", "out=/dev/null: /dev/null is not a folder"),
    ("norm.build._target_=os.system", "norm.build._target_=os.system: modules allowed"),
    ("data.build._target_=stability.parts.data.Source", "has no attribute 'train'"),
    ("allow=[nope]", "allow=nope: there is no such module"),
    ("allow=['']", "allow=: cannot be found"),
    ("allow=[os,nope.deep]", "allow=nope.deep: cannot be found: ModuleNotFoundError"),
    # form
    ("norm", "norm: is no KEY=VALUE"),
    ("help", "help: is no KEY=VALUE; --help lists every key"),
    ("depth=6,", "depth=6,: ends in a comma; say depth=A,B without spaces"),
    ("norm=[pre,post]", "a grid is written without brackets: norm=pre,post"),
    ("depth=[6,24]", "a grid is written without brackets: depth=6,24"),
    ("seed=0..2", "seed=0..2: must be a whole number", "a range is written seed=range(0,3)"),
    ("--depth=6", "--depth=6: keys have no dashes; say depth=VALUE"),
    ("--lr", "--lr: keys have no dashes; say train.lr=VALUE"),
    ("=3", "=3: cannot be read"),
    ("~depth", "~depth: keys cannot be deleted"),
    ("depth='6", "depth='6: cannot be read"),
    ("a=b=c", "a=b=c: cannot be read"),
    ("--nonsense", "unrecognized arguments: --nonsense"),
    ("--experimental-rerun=x", "unrecognized arguments: --experimental-rerun=x"),
    ("--cfg=hydra", "invalid choice: 'hydra'"),
    ("--config-dir=nowhere", "--config-dir=nowhere: is not a folder"),
    ("--config-dir", "expected one argument"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_refusal_names_key_value_and_what_is_legal(case, capsys, tmp_path):
    word, *said = case
    assert run.main(word.split(" ") if "/launcher" in word else [word]) == run.BAD_INPUT
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert all(text in err for text in said), err
    assert list(tmp_path.iterdir()) == []


DATA = [
    (b"", "text", "is empty"),
    (b"\xff\xfe\x00binary", "text", "must be UTF-8 text"),
    (b"short", "text", "model.context=64: must be <"),
    (b"odd", "tokens", "holds 3 bytes"),
    (b"\xff\xff" * 9999, "tokens", "holds token 65535"),
]


@pytest.mark.parametrize(("content", "kind", "said"), DATA)
def test_bad_data_is_refused(content, kind, said, capsys, tmp_path):
    (tmp_path / "file").write_bytes(content)
    assert run.main([f"data={kind}", "data.path=file"]) == run.BAD_INPUT
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data=text"], "data.path"),
        (["data=text", "data.path=nowhere"], "data.path=nowhere: must name a file that exists"),
        (["data=text", "data.path=."], "data.path=.: must name a file"),
    ],
)
def test_missing_data_are_refused(words, said, capsys):
    assert run.main(words) == run.BAD_INPUT
    assert said in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_made_is_refused(monkeypatch, capsys, tmp_path):
    write(tmp_path / "file", "")
    assert run.main(["out=file/below"]) == run.BAD_INPUT
    assert "out=file/below: file is not a folder" in capsys.readouterr().err
    if sys.platform == "linux":  # even root cannot write here
        with pytest.raises(REFUSALS, match="out=/proc/x"):
            grid.make_folder(Config(out="/proc/x", name="a"))


@pytest.mark.parametrize("grid", ["norm=pre,post", "depth=6,24", "seed=range(3)"])
def test_of_a_grid_no_single_config_is_shown(grid, capsys):
    assert run.main(["--cfg", "job", grid]) == run.BAD_INPUT
    out, err = capsys.readouterr()
    assert out == "" and err == f"{grid}: --cfg shows one config: one value for each key\n"


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "\t", "- 1", "build: 3", "depth: 7"])
def test_a_damaged_yaml_of_the_user_is_refused(text, capsys, tmp_path):
    write(tmp_path / "mine" / "norm" / "broken.yaml", text)
    assert run.main(["--config-dir", "mine", "norm=broken"]) == run.BAD_INPUT
    assert capsys.readouterr().err.count("\n") == 1


def test_runs_that_cannot_be_read_are_told_of_as_they_are(monkeypatch, capsys):
    def summary(*_):
        raise index.Unreadable("outputs/s/1a2b3c4d/layers.parquet: damaged")

    monkeypatch.setattr(launch, "run_cells", summary)
    assert run.main(["depth=2"]) == run.BAD_INPUT
    assert capsys.readouterr().err == "outputs/s/1a2b3c4d/layers.parquet: damaged\n"


def test_a_current_folder_that_is_gone_is_refused(monkeypatch, capsys, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run.main(["out=/tmp"]) == run.BAD_INPUT
    assert capsys.readouterr().err == "the current folder: is gone (No such file or directory)\n"


def test_what_a_grid_names_is_not_called(capsys, tmp_path):
    target = "{_target_: tempfile.mkdtemp, prefix: called, dir: .}"
    text = f"# @package _global_\nhydra: {{sweeper: {{params: {{seed: {target}}}}}}}\n"
    write(tmp_path / "mine" / "experiments" / "calls.yaml", text)
    assert run.main(["--config-dir", "mine", "experiments=calls"]) == run.BAD_INPUT
    assert capsys.readouterr().err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_traceback_is_there_for_who_asks():
    def said(**environment):
        program = "import sys; from stability.run import main; sys.exit(main(['depth=0']))"
        return subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | environment,
            capture_output=True,
            text=True,
        )

    quiet, full = said(), said(HYDRA_FULL_ERROR="1")
    assert quiet.returncode == full.returncode == run.BAD_INPUT
    assert "Traceback" not in quiet.stderr and "Traceback" in full.stderr


def test_nothing_evaluates_text():
    for path in Path(launch.__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), path


# -- anything at all -----------------------------------------------------------------------------

scalars = st.one_of(
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.booleans(),
    st.none(),
    st.sampled_from(
        ["", "pre", "auto", "none", "???", "${depth}", "${nope}", "a b", "é", "'", '"']
    ),
    st.text(max_size=8),
)
nested = st.recursive(
    scalars, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=2)
)
quoted = st.text(max_size=10).map(lambda s: "'" + s.replace("'", r"\'") + "'")
grids = st.sampled_from(
    ["1,2", "pre,post", "range(1,3)", "range(3)", "choice(1,a)", "glob(*)", "a,"]
)
options = st.sampled_from(
    ["pre", "post", "none", "gpt2", "nano", "markov", "nope", "../x", "[a,b]"]
)
keys = st.one_of(
    st.sampled_from([*KNOBS, *GROUPS]),
    st.sampled_from([*KNOBS, *GROUPS]).map(lambda k: k[:-1]),
    st.sampled_from(["norm.build.x", "train", "hydra.job.name", "hydra/launcher", "a.b", "norm@x"]),
    st.text(max_size=6),
)
overrides = st.builds(
    lambda prefix, key, value: f"{prefix}{key}={value}",
    st.sampled_from(["", "", "", "", "+", "++", "~"]),
    keys,
    st.one_of(nested.map(str), quoted, grids, options, st.integers(0, 9).map(str)),
)


@settings(
    max_examples=int(os.environ.get("STABILITY_EXAMPLES", "200")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(words=st.lists(overrides, min_size=1, max_size=3))
@example(words=["norm.label=\ud800"])
@example(words=["depth=" + "[" * 500])
@example(words=["name='\x00'"])
@example(words=["out='\x00'"])
@example(words=[f"out={'x' * 5000}"])
@example(words=["model.width=100000000000"])
@example(words=["train.batch_size=9223372036854775807"])
def test_any_command_line_is_accepted_or_refused_in_a_line(words, tmp_path):
    try:
        cells = planned(*words)
        check(cells)
    except REFUSALS as error:
        text = explain(error)
        assert text.isprintable() and 0 < len(text) <= MAX_LENGTH + 5
        with suppress(UnicodeEncodeError):
            text.encode()
    else:
        assert cells
    assert list(tmp_path.iterdir()) == []
