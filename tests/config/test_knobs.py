"""Every knob is documented and bounded."""

import pytest

from stability.config.knobs import AXES, GROUPS, KNOBS
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
