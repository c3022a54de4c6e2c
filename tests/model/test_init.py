"""How weights start: the std of each init, and draws that depend on seed and name alone."""

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from stability.config.names import Key
from stability.model import build
from stability.model.gpt import GPT, draw
from stability.parts.inits import RESIDUAL_ROLES, Weight
from tiny import make_config, options

VOCAB = 32


def model_of(changes=None, vocab=VOCAB, **over) -> GPT:
    return build.model_of(make_config(changes, **over), vocab)


WIDE, DEEP = 256, 2


class Matrix(NamedTuple):
    """What a closed form may depend on."""

    role: str
    fan_in: int
    fan_out: int
    layer: int
    depth: int
    sublayers: int

    @property
    def residual(self) -> bool:
        """Whether it writes to the stream."""
        return self.role in ("attn_out", "mlp_out", "linear")


# The std of each rule, written from its source.
CLOSED_FORMS: dict[str, Callable[[Matrix], float]] = {
    "normal": lambda m: 0.05,
    "gpt2": lambda m: 0.02 / math.sqrt(m.sublayers) if m.residual else 0.02,
    "xavier": lambda m: math.sqrt(2 / (m.fan_in + m.fan_out)),
    "lecun": lambda m: math.sqrt(1 / m.fan_in),
    "kaiming": lambda m: math.sqrt(2 / m.fan_in),
    "small": lambda m: math.sqrt(2 / (5 * WIDE)),
    "wang": lambda m: 2 / m.depth / math.sqrt(WIDE) if m.residual else math.sqrt(2 / (5 * WIDE)),
    "tiny": lambda m: math.sqrt(1 / (2 * WIDE * m.depth)),
    "depth_init": lambda m: (
        1 / math.sqrt(WIDE)
        if m.role == "head"
        else 0.02 / math.sqrt(2 * (m.layer + 1))
        if m.residual or m.role == "mlp_in"
        else 0.02
    ),
}


def test_every_init_has_its_closed_form_here():
    assert CLOSED_FORMS.keys() == set(options("init"))


def gain(norm: str, role: str, depth: int) -> float:
    deep = norm == "deepnorm" and role in (
        "v",
        "attn_out",
        "mlp_in",
        "mlp_gate",
        "mlp_out",
        "linear",
    )
    return (8 * depth) ** -0.25 if deep else 1.0


@pytest.mark.parametrize("norm", ["pre", "deepnorm"])
@pytest.mark.parametrize("init", CLOSED_FORMS)
def test_lesson_02_every_matrix_has_the_std_of_its_closed_form_q_k_and_v_apart(init, norm):
    fans = dict.fromkeys(("q", "k", "v", "attn_out"), (WIDE, WIDE))
    fans |= {"mlp_in": (WIDE, 2 * WIDE), "mlp_gate": (WIDE, 2 * WIDE), "mlp_out": (2 * WIDE, WIDE)}
    changes = {
        "model.width": WIDE,
        "model.mlp_ratio": 2.0,
        "activation": "swiglu",
        "model.tie_embeddings": False,
        "init.std": 0.05,
    }
    model = model_of(changes, vocab=300, init=init, norm=norm, depth=DEEP)
    seen = set()
    for (layer, sublayer, name), p in model.weights().items():
        if name.endswith("bias"):
            assert (p == 0).all()
        elif name.startswith("norm"):
            assert (p == 1).all()
        else:
            if sublayer == "embed":
                wanted = 0.02
            elif sublayer == "head":
                wanted = CLOSED_FORMS[init](Matrix("head", WIDE, 300, DEEP, DEEP, 2 * DEEP))
            else:
                matrix = Matrix(name, *fans[name], layer, DEEP, 2 * DEEP)
                wanted = CLOSED_FORMS[init](matrix) * gain(norm, name, DEEP)
            spread = 5 * wanted / math.sqrt(2 * p.numel())  # five standard errors of a std
            assert p.std().item() == pytest.approx(wanted, abs=spread), (layer, name)
            assert p.mean().item() == pytest.approx(0, abs=5 * wanted / math.sqrt(p.numel()))
            seen.add(name)
    assert seen == {*fans, "wte", "wpe", "head"}


def test_the_linear_branch_has_its_closed_form_and_counts_one_sublayer_a_block():
    for init in CLOSED_FORMS.keys() - {"normal"}:
        changes = {"model.sublayers": "linear", "model.width": WIDE}
        w = model_of(changes, init=init, depth=3).weights()[Key(1, "linear", "linear")]
        wanted = CLOSED_FORMS[init](Matrix("linear", WIDE, WIDE, 1, 3, 3))
        assert w.std().item() == pytest.approx(wanted, rel=5 / math.sqrt(2 * w.numel()))


def test_the_embedding_has_its_own_std():
    weights = model_of({"init.embed_std": 0.5, "model.width": WIDE}, vocab=500).weights()
    w = weights[Key(-1, "embed", "wte")]
    assert w.std().item() == pytest.approx(0.5, rel=5 / math.sqrt(2 * w.numel()))


def start(layer: int = 3, **over) -> dict[str, torch.Tensor]:
    """Matrices of one block, in fp64 and divided by their std: the bare draws."""
    config = make_config(dtype="fp64", **over)
    model = build.model_of(config, VOCAB)
    init, found = build.init_of(config), {}
    for (at, sublayer, name), p in model.weights().items():
        if at == layer and p.ndim == 2:
            sublayers = 2 * config.depth
            std = init.std(Weight(name, p.shape[1], p.shape[0], at, config.depth, sublayers))
            placement = model.blocks[at].sublayers()[sublayer].placement
            found[name] = p.detach().double() / (std * placement.init_gain(name))
    return found


@pytest.mark.parametrize("init", ["xavier", "gpt2"])
def test_a_layer_starts_from_the_same_draws_whatever_depth_and_placement(init):
    reference = start(depth=6, init=init)
    assert set(reference) >= {"q", "k", "v", *RESIDUAL_ROLES} - {"linear"}
    for norm in options("norm"):
        for depth in (6, 24):
            other = start(depth=depth, norm=norm, init=init)
            for name, draws in reference.items():
                torch.testing.assert_close(other[name], draws, rtol=1e-13, atol=0, msg=name)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "amp_bf16"])
def test_a_dtype_only_rounds_the_start(dtype):
    exact = model_of(dtype="fp64", depth=6).weights()
    rounded = model_of(dtype=dtype, depth=6).weights()
    for key, p in rounded.items():
        assert torch.equal(p, exact[key].to(p.dtype)), key


def test_no_two_weights_share_their_draws_and_seeds_differ():
    model = model_of(depth=3, init="normal", dtype="fp64")
    square = [p for p in model.weights().values() if p.shape == (16, 16)]
    assert len(square) == 12
    for i, p in enumerate(square):
        assert not any(torch.equal(p, other) for other in square[:i])
    other = model_of(depth=3, init="normal", dtype="fp64", seed=1)
    for p, q in zip(model.weights().values(), other.weights().values(), strict=True):
        assert p.ndim == 1 or not torch.equal(p, q)


def test_draws_never_change():
    """Every recorded number rests on them; they must not depend on hash() or the platform."""
    few, many = (draw(0, "3.attn.q", torch.Size(shape)) for shape in ([3], [64, 64]))
    assert few.tolist() == pytest.approx([1.7353691107, -0.2850213375, 1.5591280683], abs=1e-9)
    corner = [-0.8957163798, -0.5193094545, -1.6689498898]
    assert many[-1, -3:].tolist() == pytest.approx(corner, abs=1e-9)


def test_building_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    model_of(depth=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_thousand_layers_build_and_run():
    model = model_of({"model.width": 4, "model.heads": 1}, depth=1000)
    assert len(model.blocks) == 1000
    with torch.no_grad():
        assert model(torch.arange(8)[None]).isfinite().all()
