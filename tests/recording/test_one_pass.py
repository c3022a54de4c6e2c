"""What the loop that numba compiles asks of a tensor; its numbers are tested in test_stats.py."""

import math

import numpy as np
import pytest
import torch

from stability.recording import one_pass, stats
from stability.results.statistics import INDEX


def test_it_is_in_use() -> None:
    assert one_pass.COVERS and one_pass.is_able(torch.ones(3))


@pytest.mark.parametrize(
    "features", [1, one_pass.BLOCK - 1, one_pass.BLOCK + 1, 3 * one_pass.BLOCK]
)
def test_long_tokens_are_read_block_by_block(
    features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 3, features, generator=torch.Generator().manual_seed(features))
    x.flatten()[-1] = 2.0**-140
    found, rms = stats.measure_tokens(x)
    monkeypatch.setattr(one_pass, "numba", None)
    wanted, wanted_rms = stats.measure_tokens(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    np.testing.assert_allclose(rms, wanted_rms, rtol=1e-12)
    assert found[INDEX["subnormal"]] == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_tensor_that_is_not_finite_is_left_to_the_reference(bad: float) -> None:
    assert one_pass.measure(torch.tensor([1.0, bad])) is None


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_squares_that_leave_the_range_of_fp64_are_left_to_the_reference(size: float) -> None:
    assert one_pass.measure(torch.tensor([size, 0.0], dtype=torch.float64)) is None
    assert one_pass.measure(torch.zeros(2, dtype=torch.float64)) is not None


def test_the_storage_of_a_measured_tensor_can_still_be_resized() -> None:
    """FSDP frees the storage of parameters by resizing it; ``Tensor.numpy`` would forbid that."""
    x = torch.ones(4)
    stats.measure(x)
    x.untyped_storage().resize_(0)
    assert not one_pass.is_able(x)


def test_what_is_no_plain_tensor_of_a_cpu_is_left_to_the_reference() -> None:
    class Marked(torch.Tensor):
        pass

    assert not one_pass.is_able(torch.ones(3).as_subclass(Marked))
    assert not one_pass.is_able(torch.empty(0))
    assert not one_pass.is_able(torch.ones(3, device="meta"))
    assert not one_pass.is_able(torch.ones(3).to_sparse())


def test_the_median_leaves_nan_out() -> None:
    assert one_pass.median(torch.tensor([3.0, math.nan, 1.0])) == 2.0
    assert one_pass.median(torch.tensor([5.0, 1.0, 3.0])) == 3.0
    assert one_pass.median(torch.tensor([math.nan])) == 0.0
