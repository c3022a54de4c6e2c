"""Bytes that norms read and write, counted by hand."""

import pytest
import torch

from probed import FP64, Probed
from stability.training.probes import norm_bytes


def test_traffic_is_what_operations_take_and_give_and_views_are_free():
    x = torch.ones(8, 16)
    with norm_bytes.Traffic() as traffic:
        x.view(16, 8).t()
        assert traffic.bytes == 0
        x + x.t().t()
    assert traffic.bytes == 3 * x.nbytes


def test_bytes_of_a_layernorm_are_those_of_its_two_operations_and_rmsnorm_as_run_moves_more():
    probed = {t: Probed(["norm_bytes"], FP64, norm_type=t) for t in ("layernorm", "rmsnorm")}
    width, tokens = 16, 4 * 8
    stream, statistics, affine = 5 * width, 4, 6 * width / tokens  # x, y, dy, x, dx; mean, rstd
    wanted = 8 * (stream + statistics + affine)
    found = {t: probed[t].values[0, "attn", "norm"] for t in probed}
    assert found["layernorm"] == pytest.approx(wanted)
    assert found["rmsnorm"] > 2 * wanted
