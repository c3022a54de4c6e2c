"""Gains of linear layers against inputs and outputs from hooks set by hand."""

import math

import pytest

from probed import Probed, by_layer


@pytest.mark.parametrize("tied", [True, False])
def test_a_gain_is_the_ratio_of_output_to_input(tied):
    probed = Probed(["linear_gain"], {"model.tie_embeddings": tied, "activation": "swiglu"})
    slow = by_layer(probed)
    assert set(probed.values) == set(slow)
    assert ((2, "head", "head") in slow) is not tied
    for key, (x, y, _, _) in slow.items():
        wanted = float(y.norm() / x.norm() * math.sqrt(x.shape[-1] / y.shape[-1]))
        assert probed.values[key] == pytest.approx(wanted, rel=1e-5)
