"""Laws at init: what each placement does to the variance of a stream of linear branches.

Branches are W x with entries of variance 1/d, which keep the variance, and norms are RMSNorm. The
theory has the laws exactly; a net of width 1024 follows them within its own fluctuations.
"""

import math

import numpy as np
import pytest
import torch

from stability.config import instantiate
from stability.config.folders import options
from stability.parts.placements import Norms
from stability.theory.covariance import Cov, Tape, normed
from stability.theory.norm_kernels import RMSNorm
from stability.theory.sublayers import linear
from tiny import composed

WIDTH, TOKENS = 1024, 32


def placements(option, depth):
    """The placements of a net of attention and MLP, in order."""
    node = composed(norm=option)["norm"]["build"]
    return [
        instantiate.build(node, "norm", depth, layer, sublayer)
        for layer in range(depth)
        for sublayer in ("attn", "mlp")
    ]


def measured(option, depth):
    """Variances of x_0 .. x_n in one draw of weights."""
    made = torch.Generator().manual_seed(depth)
    x = torch.randn(TOKENS, WIDTH, generator=made, dtype=torch.float64)
    found = [x.square().mean().item()]
    for placement in placements(option, depth):
        gain = placement.init_gain("mlp_out")
        w = torch.randn(WIDTH, WIDTH, generator=made, dtype=torch.float64) * gain / WIDTH**0.5

        def norm(name, y, placement=placement):
            return placement.norm_gain(name) * y / y.square().mean(-1, keepdim=True).sqrt()

        x = placement(x, lambda y, w=w: y @ w, Norms(norm))
        found.append(x.square().mean().item())
    return np.array(found)


def predicted(option, depth):
    """The same by the theory."""
    x = Cov(Tape(0, math.inf), np.eye(4))
    kernel, found = RMSNorm(10**9, 0.0), [1.0]
    for placement in placements(option, depth):
        gain = placement.init_gain("mlp_out") ** 2

        def norm(name, y, placement=placement):
            return placement.norm_gain(name) * normed(kernel, y)

        x = placement(x, lambda y, gain=gain: linear(gain, y), Norms(norm))
        found.append(float(x.square))
    return np.array(found)


DEPTHS = (6, 24)
LAWS = {
    "pre": lambda n, depth: 1 + n,
    "post": lambda n, depth: np.ones(len(n)),
    "none": lambda n, depth: 2.0**n,
    "plain": lambda n, depth: np.ones(len(n)),
    "peri": lambda n, depth: 1 + n,
    "deepnorm": lambda n, depth: np.ones(len(n)),
    "sandwich": lambda n, depth: 1 + n,  # the outer norm undoes the smaller std
    "output_norm": lambda n, depth: 1 + n,
    "dssn": lambda n, depth: 1 + (0.283**2 * -(-n // 2) + 0.432**2 * (n // 2)) / depth,
    "trinity": lambda n, depth: 1 + n / depth,
    "lns": lambda n, depth: 1 + np.array([sum(1 / (1 + i // 2) for i in range(k)) for k in n]),
    "mix": lambda n, depth: 1 + np.maximum(n - 2 * (depth // 4), 0),
    "keel": lambda n, depth: np.ones(len(n)),
    "depth_mup": lambda n, depth: 1 + n / depth**2,
    "rezero": lambda n, depth: np.ones(len(n)),
    "skipinit": lambda n, depth: (1 + 1 / (2 * depth)) ** n,
    "layerscale": lambda n, depth: 1 + n * (0.1 if depth <= 18 else 1e-5) ** 2,
}
"""Option -> Var(x_n) after n sublayers, of Var(x_0) = 1."""


def test_every_placement_of_one_stream_has_its_law():
    of_one_stream = {o for o in options("norm") if len(placements(o, 4)[0].streams) == 1}
    assert of_one_stream == set(LAWS)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("option", LAWS)
def test_the_theory_has_the_law_exactly(option, depth):
    law = LAWS[option](np.arange(2 * depth + 1), depth)
    assert predicted(option, depth) == pytest.approx(law, rel=1e-9)


@pytest.mark.parametrize("option", LAWS)
def test_a_wide_net_follows_the_law(option):
    """Each sublayer's relative deviation is some sqrt(2 / (tokens width)); they add up over 12."""
    depth = 6
    law = LAWS[option](np.arange(2 * depth + 1), depth)
    found = measured(option, depth)
    assert found / found[0] == pytest.approx(law / law[0], rel=0.05)


def test_all_blocks_of_a_depth_scaled_sandwich_add_the_same_at_every_depth():
    added = [predicted("dssn", depth)[-1] - 1 for depth in (2, 12, 96)]
    assert added == pytest.approx([0.283**2 + 0.432**2] * 3) and added[0] == pytest.approx(
        0.267, abs=1e-3
    )
    assert [predicted("trinity", depth)[-1] - 1 for depth in (2, 96)] == pytest.approx([2, 2])


def test_deepnorm_at_80_layers_has_the_constant_of_a_production_model():
    (placement, *_) = placements("deepnorm", 80)
    assert placement.alpha == pytest.approx(3.5565588, abs=1e-7)
