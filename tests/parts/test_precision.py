"""What each dtype means for parameters and products, and how a loss scale moves."""

import pytest
import torch

from stability.config.knobs import DTYPES
from stability.parts.precision import PRECISIONS, LossScale

CPU = torch.device("cpu")
GOOD, BAD = torch.tensor(False), torch.tensor(True)


@pytest.mark.parametrize(
    ("name", "param", "compute"),
    [
        ("fp64", torch.float64, torch.float64),
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.bfloat16),
        ("fp16", torch.float16, torch.float16),
        ("amp_bf16", torch.float32, torch.bfloat16),
        ("amp_fp16", torch.float32, torch.float16),
    ],
)
def test_a_dtype_says_in_which_format_parameters_are_kept_and_products_made(name, param, compute):
    precision = PRECISIONS[name]
    x = torch.ones(2, 2, dtype=param)
    with precision.context(CPU):
        assert (x @ x).dtype == compute
    assert (precision.param, precision.compute) == (param, compute)


def test_every_dtype_of_the_config_has_its_precision():
    assert set(PRECISIONS) == set(DTYPES)


@pytest.mark.parametrize(("setting", "factor"), [("none", 1.0), (1024, 1024.0), (0.5, 0.5)])
def test_a_constant_loss_scale_stays_what_it_is(setting, factor):
    scale = LossScale(setting, CPU)
    scale.growth_interval = 1
    for bad in (GOOD, BAD, GOOD):
        scale.update(bad)
        assert float(scale.scale) == factor
    assert not scale.dynamic
    assert scale.scale.dtype == torch.float32


def test_a_dynamic_loss_scale_starts_at_2_to_the_16_and_doubles_after_2000_good_steps():
    scale = LossScale("dynamic", CPU)
    assert scale.dynamic
    for _ in range(1999):
        scale.update(GOOD)
    assert float(scale.scale) == 2**16
    scale.update(GOOD)
    assert float(scale.scale) == 2**17


def test_a_dynamic_loss_scale_halves_at_a_bad_step_and_counts_good_ones_anew():
    scale = LossScale("dynamic", CPU)
    scale.growth_interval = 3
    found = []
    for bad in (GOOD, GOOD, BAD, BAD, GOOD, GOOD, GOOD, GOOD, GOOD, GOOD, GOOD):
        scale.update(bad)
        found.append(float(scale.scale) / 2**16)
    assert found == [1, 1, 0.5, 0.25, 0.25, 0.25, 0.5, 0.5, 0.5, 1, 1]


def test_a_loss_scale_goes_on_where_its_state_was_taken():
    scale, other = LossScale("dynamic", CPU), LossScale("dynamic", CPU)
    for each in (scale, other):
        each.growth_interval = 3
    for bad in (BAD, GOOD, GOOD):
        scale.update(bad)
    held = other.scale
    other.load_state_dict(scale.state_dict())
    assert other.scale is held and float(held) == 2**15  # a loss may hold the tensor already
    other.update(GOOD)
    assert float(other.scale) == 2**16
