"""What the loop that numba compiles asks of a tensor; its numbers are tested in test_stats.py."""

import math

import numpy as np
import pytest
import torch

from stability.recording import compiled_loops, one_pass, stats
from stability.results.statistics import INDEX


def test_it_is_in_use() -> None:
    assert one_pass.COVERS and one_pass.is_able(torch.ones(3))


@pytest.mark.parametrize(
    "features", [1, compiled_loops.BLOCK - 1, compiled_loops.BLOCK + 1, 3 * compiled_loops.BLOCK]
)
def test_long_tokens_are_read_block_by_block(
    features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 3, features, generator=torch.Generator().manual_seed(features))
    x.flatten()[-1] = 2.0**-140
    found, rms = stats.measure_tokens(x)
    monkeypatch.setattr(one_pass, "compiled_loops", None)
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


def test_a_view_whose_memory_holds_the_negated_numbers_is_left_to_the_reference() -> None:
    x = torch.complex(torch.zeros(3), torch.ones(3)).conj().imag
    assert x.is_neg() and not one_pass.is_able(x)
    assert stats.measure(x)[INDEX["mean"]] == -1


def test_the_median_leaves_nan_out() -> None:
    rows = [
        [3.0, math.nan, 1.0],
        [5.0, 1.0, 3.0],
        [math.nan],
        [4.0, 1.0, 2.0, 7.0],
        [2.0, 2.0, 9.0],
    ]
    found = one_pass.medians([torch.tensor(row) for row in rows])
    assert found.tolist() == [2.0, 3.0, 0.0, 3.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1.0, 300.0, 1e6])
def test_scores_and_entropy_are_those_of_a_softmax(dtype: torch.dtype, size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = size * torch.randn(3, 5, 37, generator=generator, dtype=dtype)
    seen = np.array([1, 2, 16, 36, 37])
    found = one_pass.seen_scores(scores, seen)
    assert found is not None
    flat, entropy = found
    rows = [[s[:n].double() for s, n in zip(head, seen, strict=True)] for head in scores]
    assert torch.equal(flat.double(), torch.cat([row for head in rows for row in head]))
    wanted = torch.stack(
        [torch.stack([torch.special.entr(row.softmax(-1)).sum() for row in head]) for head in rows]
    )
    torch.testing.assert_close(entropy.double(), wanted, rtol=2e-7, atol=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_left_to_the_reference(bad: float) -> None:
    scores = torch.zeros(1, 2, 3)
    scores[0, 0, 1] = bad  # the first query sees one key
    assert one_pass.seen_scores(scores, np.array([1, 3])) is not None
    assert one_pass.seen_scores(scores, np.array([2, 3])) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_differences_are_taken_in_fp64(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    new = [torch.randn(n, generator=generator).to(dtype) for n in (1, 7, 1000)]
    old = [x + (1e-3 * torch.randn(len(x), generator=generator)).to(dtype) for x in new]
    new.append(torch.tensor([1.0, math.nan]).to(dtype))
    old.append(torch.ones(2, dtype=dtype))
    found = stats.measure_many(new, old)
    wanted = torch.stack(
        [stats.measure(x.double() - y.double()) for x, y in zip(new, old, strict=True)]
    )
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0, equal_nan=True)


def test_tensors_of_several_formats_and_of_no_entries_are_measured_together() -> None:
    tensors = [torch.ones(3), torch.ones(2, dtype=torch.bfloat16), torch.ones(0)]
    found = stats.measure_many(tensors)
    assert found[:, INDEX["numel"]].tolist() == [3, 2, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_tensors_are_copied_one_at_a_time(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model in 16 bits must not be copied to fp32 as a whole."""
    copied = []
    held = one_pass._held
    monkeypatch.setattr(one_pass, "_held", lambda x: copied.append(x.numel()) or held(x))
    sizes, call = [5, 7, 9], one_pass.measure_many
    at_once = []
    monkeypatch.setattr(one_pass, "measure_many", lambda x, y: at_once.append(len(x)) or call(x, y))
    found = stats.measure_many([torch.ones(n, dtype=dtype) for n in sizes])
    assert found[:, INDEX["numel"]].tolist() == copied == sizes
    assert at_once == [1, 1, 1]
    monkeypatch.setattr(one_pass, "LARGEST_COPY", 8)
    assert not one_pass.is_able(torch.ones(9, dtype=dtype))
    assert one_pass.is_able(torch.ones(9))
