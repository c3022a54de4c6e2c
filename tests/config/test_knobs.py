"""Every knob is documented and bounded."""

import pytest
import torch

from stability.config.knobs import AXES, DTYPES, GROUPS, KNOBS
from stability.parts.precision import PRECISIONS
from tiny import CONF


@pytest.mark.parametrize("key", KNOBS)
def test_every_knob_says_what_it_means(key):
    knob = KNOBS[key]
    assert knob.doc
    assert not knob.doc.endswith(".")


def test_axes_and_groups_are_knobs():
    for axis in AXES:
        assert axis in KNOBS or f"{axis}.build" in KNOBS
    assert {p.name for p in CONF.iterdir() if p.is_dir()} == set(GROUPS)


def test_numbers_have_a_unit_or_are_ratios_and_counts():
    for key in ("depth", "model.context", "train.steps", "train.warmup_steps", "record.every"):
        assert KNOBS[key].unit


def test_no_whole_number_is_accepted_without_an_upper_bound():
    whole = [key for key, knob in KNOBS.items() if type(knob.default) is int]
    whole += ["model.vocab", "data.vocab", "n_jobs"]
    assert not any(KNOBS[key].legal.test(2**63 - 1) for key in whole)


@pytest.mark.parametrize("text", ["1/1", "1/3", "3/3", "10/12"])
def test_a_shard_is_a_part_of_parts(text):
    assert KNOBS["shard"].legal.test(text)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "1", "1/3/", "a/b", "01/3", "-1/3", "1 /3"])
def test_what_is_no_shard_is_refused(text):
    assert not KNOBS["shard"].legal.test(text)


@pytest.mark.parametrize(
    ("dtype", "bits"), [("fp64", 64), ("fp32", 32), ("bf16", 16), ("fp16", 16)]
)
def test_formats_have_as_many_bits_as_torch_gives_them(dtype, bits):
    assert DTYPES[dtype].bits == bits == torch.finfo(PRECISIONS[dtype].param).bits
