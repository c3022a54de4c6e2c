"""What cannot be built is refused before anything is, by the key that brought it in."""

import sys

import pytest

from stability.config import instantiate
from stability.config.knobs import ConfigError
from stability.model import preflight
from stability.sweep import worker
from tiny import make_config


def test_a_bug_in_a_branch_is_not_taken_for_bad_input(monkeypatch):
    """Only a size that overflows is refused as one that cannot be built."""

    def fail(config):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(preflight, "parts_of", fail)
    with pytest.raises(RuntimeError, match="shapes cannot"):
        worker.check([make_config()])


PARTS = """
import math, torch
from stability.parts.placements import Pre, NoNorm
from stability.parts.norms import Affine, LayerNorm
from stability.parts.inits import Init
from stability.parts.activations import Activation
from stability.parts.optimizers import SGD, UpdateRule

class Refuses(Pre):
    def __init__(self, depth, layer, sublayer):
        {}["missing"]

class Last(Pre):
    def __init__(self, depth, layer, sublayer):
        super().__init__(depth, layer, sublayer)
        if layer == depth - 1:
            raise RuntimeError("not here")

class Leaves(Pre):
    def __init__(self, depth, layer, sublayer):
        raise SystemExit(3)

class Nothing(Pre):
    def __new__(cls, *args):
        return None

class Tensors(Pre):
    def __call__(self, x, f, norm):
        return x.relu() + f(norm(x))

class Gainless(Pre):
    def init_gain(self, role):
        return math.nan

class Half(LayerNorm):
    def __init__(self, width, bias, eps):
        super().__init__(width // 0, bias, eps)

class Flat(Activation):
    def __call__(self, x):
        return x.mean()

class Double(Activation):
    def __call__(self, x):
        return x.double()

class Unmade(UpdateRule):
    def make(self, weights, train, fused):
        return torch.optim.LBFGS(self.groups(weights, train))

    def asked(self, inner, group, w, old):
        return old

class Twice(SGD):
    def make(self, weights, train, fused):
        return super().make(weights, train, fused) * 2

class Negative(Init):
    def std(self, w):
        return -1.0 if w.role == "mlp_out" else 1.0

class Roles(Init):
    def std(self, w):
        return {"q": 1.0}[w.role]
"""


def sized(**sizes):
    """A config of these sizes, which `config.validate` has not seen."""
    config = make_config()
    for key, value in sizes.items():
        setattr(config if key == "depth" else config.model, key, value)
    return config


@pytest.mark.parametrize(
    ("sizes", "key"),
    [
        ({"width": 100_000_000}, "model.width"),
        ({"width": 2**16, "mlp_ratio": 1000.0, "depth": 10**6}, "model.width"),
        ({"width": 64, "depth": 10**9}, "depth"),
        ({"width": 64, "vocab": 10**12}, "model.vocab"),
    ],
)
def test_weights_beyond_the_memory_are_refused_by_the_key_that_makes_them_large(
    sizes, key, monkeypatch
):
    monkeypatch.setattr(preflight, "parts_of", lambda config: pytest.fail("something was built"))
    with pytest.raises(ConfigError, match=r"GB; this machine has") as refused:
        preflight.check(sized(**sizes))
    assert (refused.value.key, refused.value.value) == (key, sizes[key.rpartition(".")[2]])


@pytest.mark.parametrize("sizes", [{"depth": 1000}, {"width": 4096, "vocab": 50_304}])
def test_a_large_model_is_not_refused(sizes):
    preflight.check(sized(**sizes))


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of parts that break, and one that cannot be read."""
    monkeypatch.setattr(instantiate, "_allowed", {"stability"})
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "breaking.py").write_text(PARTS)
    (tmp_path / "unreadable.py").write_text("def f(:\n")
    instantiate.trust(tmp_path)
    yield
    sys.modules.pop("breaking", None)


BROKEN = [
    ("norm", "breaking.Refuses", "norm.build", "KeyError: 'missing'"),
    ("norm", "breaking.Last", "norm.build", "RuntimeError: not here"),
    ("norm", "breaking.Leaves", "norm.build", "SystemExit: 3"),
    ("norm", "breaking.Nothing", "norm.build._target_", "must build a Placement"),
    ("norm", "breaking.Tensors", "norm.build._target_", "has no attribute 'relu'"),
    ("norm", "breaking.Gainless", "norm.build._target_", "init_gain of q: is nan"),
    ("norm", "unreadable.Pre", "norm.build._target_", "cannot be imported: SyntaxError"),
    ("norm", "stability.parts.placements.Placement", "norm.build._target_", "is an abstract class"),
    ("norm", "stability.parts.inits.Xavier", "norm.build", "Xavier: too many positional arguments"),
    ("norm_type", "breaking.Half", "norm_type.build", "ZeroDivisionError"),
    ("norm_type", "stability.parts.norms.Affine", "norm_type.build._target_", "has no forward"),
    ("init", "breaking.Negative", "init.build._target_", "std of mlp_out: is -1.0"),
    ("init", "breaking.Roles", "init.build._target_", "std of k: KeyError"),
    ("init", "stability.parts.inits.Init", "init.build._target_", "is an abstract class"),
    ("activation", "breaking.Flat", "activation.build._target_", "makes torch.float32 [] of"),
    ("activation", "breaking.Double", "activation.build._target_", "makes torch.float64 [2, 3] of"),
    (
        "activation",
        "stability.parts.inits.Xavier",
        "activation.build._target_",
        "must build an Activation",
    ),
    ("optimizer", "breaking.Unmade", "optimizer.build._target_", "parameter groups"),
    ("optimizer", "breaking.Twice", "optimizer.build._target_", "is in 2 parameter groups"),
    ("optimizer", "stability.parts.optimizers.SGD", "optimizer.build.betas", "takes nothing"),
]


@pytest.mark.parametrize(("group", "target", "key", "said"), BROKEN, ids=lambda v: v)
def test_a_part_that_breaks_is_refused_by_the_key_that_names_it(mine, group, target, key, said):
    config = make_config()
    build = getattr(config, group).build
    build["_target_"] = target
    if target.startswith("breaking.") and group == "optimizer":
        config.optimizer.build = {"_target_": target}
    with pytest.raises(ConfigError) as refused:
        preflight.check(config)
    assert refused.value.key == key
    assert said in refused.value.reason


def test_tf32_is_refused_where_there_are_no_tensor_cores():
    with pytest.raises(ConfigError, match="tf32=True: has no effect: the device is cpu"):
        preflight.check(make_config({"tf32": True}))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("betas", [0.9], "betas must be two numbers"),
        ("betas", [0.9, 1.0], "betas must be two numbers"),
        ("betas", [-0.1, 0.9], "betas must be two numbers"),
        ("eps", -1.0, "eps must be >= 0"),
    ],
)
def test_adam_refuses_arguments_that_are_set_below_build(name, value, said):
    config = make_config()
    config.optimizer.build[name] = value
    with pytest.raises(ConfigError) as refused:
        preflight.check(config)
    assert refused.value.key == "optimizer.build" and said in refused.value.reason
