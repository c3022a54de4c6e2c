"""The theory of runs on disk: its rows, its cache, and why a run has none."""

import numpy as np
import pandas as pd
import pytest
import yaml

from stability.config import instantiate
from stability.theory import recursion, run_theory
from stability.theory.limits import NoTheory, decomposing

KEY = ["layer", "sublayer", "site", "kind"]


def test_a_run_on_disk_gets_rows_for_every_site_that_it_recorded(sweep):
    run = sweep / "run-0"
    frame = run_theory.theory_of_run(run)
    recorded = pd.read_parquet(run / "layers.parquet")
    recorded = recorded[recorded["kind"].isin(["act", "grad"])].astype(dict.fromkeys(KEY, str))
    recorded = recorded[~recorded["site"].isin(["scores", "attn_rows"])]
    joined = recorded.merge(frame.astype(dict.fromkeys(KEY, str)), on=KEY, suffixes=("", "_theory"))
    assert len(joined) == len(recorded) == len(frame)
    assert (joined["numel"] == joined["numel_theory"]).all()
    assert np.abs(np.log(joined["rms"] / joined["rms_theory"])).max() < 1


def test_a_result_is_kept_beside_the_figures_and_used_again(sweep, tmp_path, monkeypatch):
    first = run_theory.theory_of_run(sweep / "run-0", tmp_path / "theory")
    assert len(list((tmp_path / "theory").iterdir())) == 1
    monkeypatch.setattr(run_theory, "predict", None)
    pd.testing.assert_frame_equal(
        run_theory.theory_of_run(sweep / "run-0", tmp_path / "theory"), first
    )


def test_a_run_without_its_batch_or_with_a_foreign_class_has_no_theory(sweep, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(NoTheory, match=r"config\.yaml"):
        run_theory.theory_of_run(run)
    config = yaml.safe_load((sweep / "run-0" / "config.yaml").read_text())
    config["norm"]["build"]["_target_"] = "os.system"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    for name in ("run.json", "batch0.npz"):
        (run / name).write_bytes((sweep / "run-0" / name).read_bytes())
    with pytest.raises(NoTheory, match=r"os\.system"):
        run_theory.theory_of_run(run)


@pytest.mark.parametrize("content", [b"", b"PK torn", b"words"])
def test_a_run_with_a_damaged_batch_has_no_theory(sweep, tmp_path, content):
    for name in ("config.yaml", "run.json"):
        (tmp_path / name).write_bytes((sweep / "run-0" / name).read_bytes())
    (tmp_path / "batch0.npz").write_bytes(content)
    with pytest.raises(NoTheory, match="cannot be read"):
        run_theory.theory_of_run(tmp_path)
    batch = (sweep / "run-0" / "batch0.npz").read_bytes()
    (tmp_path / "batch0.npz").write_bytes(batch[: len(batch) // 2])
    with pytest.raises(NoTheory, match="cannot be read"):
        run_theory.theory_of_run(tmp_path)


def copy_of(run, folder):
    """A copy of a run, to be changed."""
    folder.mkdir()
    for file in sorted(run.iterdir()):
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


def change_config(run, changes):
    config = yaml.safe_load((run / "config.yaml").read_text())
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(config[key], dict)
        config[key] = config[key] | value if both else value
    (run / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": {"width": "abc"}}, r"model\.width=abc: must be a whole number"),
        ({"model": {"width": 16.5}}, r"model\.width=16\.5: must be a whole number"),
        ({"model": {"heads": 0}}, r"model\.heads=0: must be a whole number, 1 to"),
        ({"model": {"heads": 3}}, r"model\.heads=3: must divide"),
        ({"model": {"activation": "nope"}}, r"model\.activation=nope: is now called activation"),
        ({"activation": {"build": {}}}, r"activation\.build={}: needs a _target_"),
        ({"model": None}, r"model=null: must be a group of keys"),
        ({"norm": "pre"}, r"norm=pre: must be a group of keys"),
        ({"init": None}, r"init=null: must be a group of keys"),
        ({"init": {"build": None}}, r"init\.build=null: must be a group of keys"),
        ({"norm": {"build": {}}}, r"norm\.build={}: needs a _target_"),
        ({"depth": "many"}, r"depth=many: must be a whole number"),
        ({"surprise": 1}, "surprise=1: unknown key"),
    ],
    ids=str,
)
def test_a_config_changed_by_hand_has_no_theory(sweep, tmp_path, change, reason):
    run = copy_of(sweep / "run-0", tmp_path / "run")
    change_config(run, change)
    with pytest.raises(NoTheory, match=reason):
        run_theory.theory_of_run(run, tmp_path / "cache")


@pytest.mark.parametrize("key", ["depth", "model.width", "train.accumulate"])
def test_a_config_that_lacks_a_knob_of_the_theory_has_none(sweep, tmp_path, key):
    run = copy_of(sweep / "run-0", tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    group, _, name = key.rpartition(".")
    (config[group] if group else config).pop(name)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(NoTheory, match=f"lacks {key}"):
        run_theory.theory_of_run(run)


def test_a_model_that_is_not_the_gpt_has_no_theory(sweep, tmp_path):
    run = copy_of(sweep / "run-0", tmp_path / "run")
    for text in ("choices: {model: Mine}", "[1, 2]", ""):
        (run / "config.yaml").write_text(text)
        with pytest.raises(NoTheory, match="not the GPT"):
            run_theory.theory_of_run(run)


TOKENS = np.arange(6).reshape(2, 3)
BATCHES = {
    "beyond the vocabulary": {"x": TOKENS + 10**6, "y": TOKENS},
    "tokens beyond": {"x": TOKENS, "y": TOKENS + 10**6},
    "beyond the vocabulary of": {"x": TOKENS - 1, "y": TOKENS},
    "does not hold tokens": {"x": TOKENS},
    "does not hold tokens and targets": {"x": TOKENS * 0.5, "y": TOKENS},
    "not hold tokens and targets": {"x": TOKENS[0], "y": TOKENS},
    r"shape \(2, 3\), targets of \(1, 3\)": {"x": TOKENS, "y": TOKENS[:1]},
    "tokens of shape": {"x": TOKENS[:0], "y": TOKENS[:0]},
}


@pytest.mark.parametrize("reason", BATCHES)
def test_a_batch_that_the_model_cannot_read_has_no_theory(sweep, tmp_path, reason):
    run = copy_of(sweep / "run-0", tmp_path / "run")
    np.savez(run / "batch0.npz", **BATCHES[reason])
    with pytest.raises(NoTheory, match=reason):
        run_theory.theory_of_run(run)


def test_a_file_of_one_array_is_no_batch(sweep, tmp_path):
    run = copy_of(sweep / "run-0", tmp_path / "run")
    np.save(tmp_path / "batch.npy", TOKENS)
    (run / "batch0.npz").write_bytes((tmp_path / "batch.npy").read_bytes())
    with pytest.raises(NoTheory, match="does not hold tokens and targets"):
        run_theory.theory_of_run(run)


@pytest.mark.parametrize("state", ["[]", "{}", '{"data": []}', '{"data": {"vocab": "many"}}'])
def test_a_run_that_does_not_say_its_vocabulary_has_no_theory(sweep, tmp_path, state):
    run = copy_of(sweep / "run-0", tmp_path / "run")
    (run / "run.json").write_text(state)
    with pytest.raises(NoTheory, match="how many symbols"):
        run_theory.theory_of_run(run)


def fail(*args):
    raise TypeError("a defect")


def test_a_defect_of_the_theory_is_not_called_a_lack_of_it(sweep, monkeypatch):
    monkeypatch.setattr(run_theory, "predict", fail)
    with pytest.raises(TypeError, match="a defect"):
        run_theory.theory_of_run(sweep / "run-0")


def test_an_external_class_that_covariances_cannot_run_has_no_theory(sweep, tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(
        "from stability.parts.placements import Placement\n"
        "class Clipped(Placement):\n"
        "    def __call__(self, x, f, norm):\n"
        "        return x + f(norm(x)).clamp(-1, 1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(instantiate, "_allowed", {"stability", "own_parts"})
    run = copy_of(sweep / "run-0", tmp_path / "run")
    change_config(run, {"norm": {"build": {"_target_": "own_parts.Clipped"}}})
    with pytest.raises(
        NoTheory, match=r"cannot follow own_parts\.Clipped: covariances have no clamp"
    ):
        run_theory.theory_of_run(run)


OWN_PARTS = """
from stability.parts.activations import Activation
from stability.parts.inits import Init
from stability.parts.placements import Placement
from stability.theory.limits import NoTheory
from stability.theory.norm_kernels import RMSNorm


class Nothing(Placement):
    def __call__(self, x, f, norm):
        f(norm(x))


class Own(Placement):
    def __call__(self, x, f, norm):
        return x + f(norm(x))


class Defective(Placement):
    def __call__(self, x, f, norm):
        return x + (1 / 0) * f(norm(x))


class Sine(Placement):
    def __call__(self, x, f, norm):
        return x + f(norm(x)).sin()


class Twice(Placement):
    def __call__(self, x, f, norm):
        return x + x


class Raising(Init):
    def std(self, w):
        raise KeyError("head")


class Cubic(Activation):
    def __call__(self, x):
        return x**3

    def kernel(self, C):
        raise LookupError("no table")


class Refusing(Cubic):
    def kernel(self, C):
        raise NoTheory("no closed form")


class Flat(Cubic):
    def kernel(self, C):
        return C.diagonal(), C


class Norm:
    class kernel(RMSNorm):
        def __call__(self, C):
            return C.mean(), lambda G: G


class OneWay:
    class kernel(RMSNorm):
        def __call__(self, C):
            return C, lambda G: G.backward()


class Unsaid:
    class kernel:
        def __init__(self, width, eps):
            pass
"""


@pytest.fixture
def own_parts(tmp_path, monkeypatch):
    (tmp_path / "theory_own_parts.py").write_text(OWN_PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(instantiate, "_allowed", {"stability", "theory_own_parts"})


def change_part(run, group, name):
    build = {"_target_": f"theory_own_parts.{name}"} | ({"eps": 1e-5} if "type" in group else {})
    change_config(run, {group: {"build": build}})


@pytest.mark.parametrize(
    ("group", "name", "error", "words"),
    [
        ("norm", "Nothing", TypeError, "NoneType"),
        ("norm", "Defective", ZeroDivisionError, "division"),
        ("init", "Raising", KeyError, "head"),
        ("activation", "Cubic", LookupError, "no table"),
        ("activation", "Flat", ValueError, "shape"),
        ("norm_type", "Norm", ValueError, "shape"),
        ("norm_type", "OneWay", AttributeError, "backward"),
    ],
)
def test_a_defect_of_an_external_class_is_raised(
    sweep, tmp_path, own_parts, group, name, error, words
):
    run = copy_of(sweep / "run-0", tmp_path / "run")
    change_part(run, group, name)
    with pytest.raises(error, match=words):
        run_theory.theory_of_run(run)


@pytest.mark.parametrize(
    ("group", "name", "reason"),
    [
        ("norm", "Sine", r"cannot follow theory_own_parts\.Sine: covariances have no sin"),
        ("norm", "Twice", r"cannot follow theory_own_parts\.Twice: .* not independent"),
        ("activation", "Refusing", "no closed form"),
        ("norm_type", "Unsaid", r"theory_own_parts\.Unsaid lacks the attribute joint"),
    ],
)
def test_an_external_class_that_the_theory_does_not_cover_has_none(
    sweep, tmp_path, own_parts, group, name, reason
):
    run = copy_of(sweep / "run-0", tmp_path / "run")
    change_part(run, group, name)
    with pytest.raises(NoTheory, match=reason):
        run_theory.theory_of_run(run)


@pytest.mark.parametrize("function", ["normed", "linear", "mlp"])
def test_a_defect_in_a_callback_of_an_external_placement_is_raised(
    sweep, tmp_path, own_parts, monkeypatch, function
):
    run = copy_of(sweep / "run-0", tmp_path / "run")
    sublayers = "linear" if function == "linear" else "mlp"
    change_config(run, {"model": {"sublayers": sublayers}})
    change_part(run, "norm", "Own")
    run_theory.theory_of_run(run)
    monkeypatch.setattr(recursion, function, fail)
    with pytest.raises(TypeError, match="a defect"):
        run_theory.theory_of_run(run)


def test_a_defect_of_the_theory_is_raised_where_an_own_class_is_used_too(
    sweep, tmp_path, own_parts, monkeypatch
):
    run = copy_of(sweep / "run-0", tmp_path / "run")
    change_config(run, {"norm": {"build": {"_target_": "theory_own_parts.Nothing"}}})
    monkeypatch.setattr(recursion, "gaussian", fail)
    with pytest.raises(TypeError, match="a defect"):
        run_theory.theory_of_run(run)


def test_only_numbers_that_are_not_finite_excuse_a_failed_decomposition():
    with pytest.raises(np.linalg.LinAlgError, match="of no use"), decomposing(np.eye(2)):
        raise np.linalg.LinAlgError("of no use")
    with pytest.raises(NoTheory, match="exceed fp64"), decomposing(np.full((2, 2), np.inf)):
        raise np.linalg.LinAlgError("of no use")


def test_variances_beyond_fp64_have_no_theory(sweep, tmp_path):
    run = copy_of(sweep / "run-0", tmp_path / "run")
    huge = {"_target_": "stability.parts.inits.Normal", "std": 1e200}
    change_config(run, {"init": {"build": huge}})
    with pytest.raises(NoTheory, match="exceed fp64"):
        run_theory.theory_of_run(run)
