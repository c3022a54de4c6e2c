"""Mean over deviation of what norms read, token by token."""

import pytest

from probed import FP64, Probed


def test_token_mean_is_that_of_each_token_of_what_a_norm_reads():
    probed = Probed(["token_mean"], FP64, norm="pre")
    readers = [(0, "attn"), (0, "mlp"), (1, "attn"), (1, "mlp"), (2, "head")]
    for reader, x_BTD in zip(readers, probed.streams().values(), strict=True):
        tokens = x_BTD.detach().flatten(0, 1)
        ratios = [abs(x.mean()) / (x.pow(2).mean() - x.mean() ** 2).sqrt() for x in tokens]
        assert probed.values[*reader, "norm"] == pytest.approx(float(sum(ratios) / len(ratios)))
