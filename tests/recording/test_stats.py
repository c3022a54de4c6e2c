"""Statistics of any tensor of any format against NumPy in fp64, on values brought near one."""

import math
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slow_statistics import COUNTS, VALUES, token_rms_twin, twin
from stability.recording import one_pass, stats
from stability.results import statistics

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@pytest.fixture(autouse=True, scope="module", params=["one pass", "reference"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways to the numbers: in one pass, where that can be, and by the reference alone."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "reference":
            patch.setattr(one_pass, "compiled_loops", None)
        yield


def measured(x: torch.Tensor, divisor: float = 1.0) -> dict[str, float]:
    return one(stats.measure(x), divisor)


def measured_tokens(x: torch.Tensor, token_dim: int = 1) -> dict[str, float]:
    return one(stats.measure_tokens(x, token_dim)[0])


def one(vector: torch.Tensor, divisor: float = 1.0) -> dict[str, float]:
    columns = statistics.columns(vector[None].numpy(), divisor)
    found = {name: columns[name][0] for name in (*VALUES, *COUNTS)}
    return {k: math.nan if v is np.ma.masked else v.item() for k, v in found.items()}


def assert_same(found: dict[str, float], wanted: dict[str, float], rel: float = 1e-11) -> None:
    """Counts equal; values within ``rel``, the mean and the variance relative to the rms.

    A share below the smallest normal number has no digits that could agree.
    """
    assert set(found) == set(wanted) == {*VALUES, *COUNTS}
    assert {k: found[k] for k in COUNTS} == {k: wanted[k] for k in COUNTS}
    size = wanted["rms"] if wanted["rms"] > 0 else 1.0
    slack = {"mean": rel * size, "var": rel * size * size, "first_share": sys.float_info.min}
    for name in VALUES:
        assert found[name] == pytest.approx(
            wanted[name], rel=rel, abs=slack.get(name, 0.0), nan_ok=True
        ), name


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 4, 6), (2, 3, 4, 5), (1, 1, 1)])
def test_every_column_equals_its_definition(shape, dtype):
    x = draw(*shape, dtype=dtype)
    assert_same(measured(x), twin(x))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_an_activation_also_has_the_share_of_the_first_token_and_each_tokens_rms(dtype):
    x = draw(3, 5, 8, dtype=dtype)
    x[:, 0] *= 3
    vector, token_rms = stats.measure_tokens(x)
    assert_same(one(vector), twin(x, token_dim=1))
    np.testing.assert_allclose(token_rms.numpy(), token_rms_twin(x), rtol=1e-11)
    assert one(vector)["first_share"] > 0.5


def test_the_token_axis_may_stand_first():
    x = draw(5, 3, 8)
    assert_same(measured_tokens(x, token_dim=0), twin(x, token_dim=0))


def test_a_tensor_that_is_not_contiguous_is_measured_all_the_same():
    x = draw(4, 6, 8).transpose(0, 2)[:, ::2]
    assert_same(measured(x), twin(x))
    assert_same(measured_tokens(x), twin(x, token_dim=1))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_lesson_09_a_non_finite_entry_is_counted_and_the_rest_is_measured(bad, dtype):
    x = draw(2, 4, 6, dtype=dtype)
    x[1, 2, 3] = bad
    found = measured_tokens(x)
    assert found["nonfinite"] == 1
    assert_same(found, twin(x, token_dim=1))
    np.testing.assert_allclose(stats.measure_tokens(x)[1].numpy(), token_rms_twin(x), rtol=1e-11)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_a_tensor_without_entries_counts_none_and_adds_nothing(shape):
    empty, full = torch.empty(shape), draw(2, 3, 4)
    vector, token_rms = stats.measure_tokens(empty)
    for found in (vector, stats.measure(empty), stats.measure_many([empty])[0]):
        assert_same(one(found), twin(empty))
    assert token_rms.shape == (math.prod(shape[:2]),) and token_rms.isnan().all()
    whole, _ = stats.measure_tokens(full)
    merged = stats.merge(torch.stack([vector, whole])[:, None])[0]
    assert_same(one(merged), twin(full, token_dim=1))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_where_nothing_is_finite_every_value_is_nan(bad):
    x = torch.full((2, 3, 4), bad)
    vector, token_rms = stats.measure_tokens(x)
    found = one(vector)
    assert found["nonfinite"] == found["numel"] == 24
    assert all(math.isnan(found[name]) for name in VALUES)
    assert token_rms.isnan().all()


def test_a_token_without_a_finite_entry_has_no_rms_and_spoils_no_other():
    x = draw(2, 3, 4)
    x[0, 0] = math.nan
    vector, token_rms = stats.measure_tokens(x)
    assert_same(one(vector), twin(x, token_dim=1))
    np.testing.assert_allclose(token_rms.numpy(), token_rms_twin(x), rtol=1e-11)


def test_of_zeros_only_the_share_is_undefined():
    found = measured_tokens(torch.zeros(2, 3, 4))
    assert found["zeros"] == 24
    assert all(found[name] == 0 for name in VALUES if name != "first_share")
    assert math.isnan(found["first_share"])


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("fp16", 6e4),
        ("fp16", 1e-7),
        ("bf16", 3e38),
        ("fp32", 1e30),
        ("fp32", 3e38),
        ("fp32", 1e-25),
        ("fp32", 1e-44),
        ("fp64", 1e150),
        ("fp64", 1e-150),
    ],
)
def test_any_finite_tensor_has_finite_statistics(dtype, size):
    signs = torch.sign(draw(4, 8, 16)) * torch.linspace(0.5, 1, 16, dtype=torch.float64)
    x = (signs * size).to(DTYPES[dtype])
    assert x.isfinite().all()
    found = measured_tokens(x)
    assert_same(found, twin(x, token_dim=1))
    assert found["rms"] > 0
    assert all(math.isfinite(found[name]) for name in VALUES)
    assert found["near_max"] > 0 if size > 5e4 and dtype != "fp64" and size != 1e30 else True


def test_the_largest_fp64_still_has_an_rms():
    x = torch.full((4,), 1e300, dtype=torch.float64)
    assert measured(x)["rms"] == pytest.approx(1e300)
    assert measured(x)["var"] == 0


@pytest.mark.parametrize("name", DTYPES)
def test_subnormals_and_values_near_the_maximum_are_counted_by_the_tensors_own_format(name):
    dtype = DTYPES[name]
    limits = torch.finfo(dtype)
    small = [0.0, -0.0, limits.tiny, limits.tiny / 2, -limits.tiny / 4, 1.0]
    large = [limits.max, -limits.max, limits.max / 2, limits.max / 4, math.inf]
    x = torch.tensor(small + large, dtype=torch.float64).to(dtype)
    found = measured(x)
    assert found["zeros"] == 2
    assert found["subnormal"] == 2
    assert found["near_max"] == 3
    assert found["nonfinite"] == 1


def test_lesson_07_the_variance_of_parts_is_that_of_the_whole_also_after_adding_1e4():
    parts = [draw(n, seed=n) + mean for n, mean in ((50, 0.0), (7, 3.0), (1, -40.0), (300, 1.0))]
    plain = np.concatenate([p.numpy() for p in parts]).var()
    for shift in (0.0, 1e4):
        vectors = torch.stack([stats.measure(p + shift) for p in parts])
        merged = one(stats.merge(vectors[:, None])[0])
        assert_same(merged, twin(torch.cat(parts) + shift), rel=1e-10)
        assert merged["var"] == pytest.approx(plain, rel=1e-8)
        assert measured(torch.cat(parts) + shift)["var"] == pytest.approx(plain, rel=1e-8)


@pytest.mark.parametrize("shift", [1e4, 1e8])
def test_a_large_mean_does_not_drown_the_variance(shift):
    x = draw(20_000)
    assert measured(x + shift)["var"] == pytest.approx(x.var(correction=0).item(), rel=1e-6)


def test_a_few_non_finite_entries_do_not_drown_it_either():
    x = draw(20_000) + 1e4
    x[::1000] = math.nan
    assert measured(x)["var"] == pytest.approx(np.nanvar(x.numpy()), rel=1e-6)


def test_parts_merge_whatever_their_sizes_scales_and_damages():
    parts = [
        draw(2, 3, 4, dtype=torch.float32) * 1e-20,
        draw(1, 3, 4, dtype=torch.float32, seed=1) * 1e20,
        torch.full((3, 3, 4), math.nan),
        torch.zeros(1, 3, 4),
        draw(5, 3, 4, dtype=torch.float32, seed=2),
    ]
    parts[1][0, 1, 2] = math.inf
    vectors = torch.stack([stats.measure_tokens(p)[0] for p in parts])
    assert_same(one(stats.merge(vectors[:, None])[0]), twin(torch.cat(parts), token_dim=1))


def test_parts_without_anything_finite_merge_to_nan():
    vectors = torch.stack([stats.measure(torch.full((3,), math.nan))] * 2)
    found = one(stats.merge(vectors[:, None])[0])
    assert (found["numel"], found["nonfinite"]) == (6, 6)
    assert all(math.isnan(found[name]) for name in VALUES)


@pytest.mark.parametrize("chunk", [1, 7, 16, 120, 121, 1000])
def test_measuring_in_chunks_changes_nothing(monkeypatch, chunk):
    x = draw(4, 5, 6) + 100  # 120 entries: chunks that fit, leave a tail, or hold it all
    x[1, 2, 3] = math.nan
    whole, tokens, many = measured(x), stats.measure_tokens(x), [x[0, 0], x[1], x[2]]
    separate = [measured(t) for t in many]
    monkeypatch.setattr(stats, "CHUNK", chunk)
    assert_same(measured(x), whole)
    vector, token_rms = stats.measure_tokens(x)
    assert_same(one(vector), one(tokens[0]))
    np.testing.assert_allclose(token_rms.numpy(), tokens[1].numpy(), rtol=1e-12)
    for row, alone in zip(stats.measure_many(many), separate, strict=True):
        assert_same(one(row), alone)


def test_many_tensors_are_measured_as_each_alone_in_the_order_given():
    tensors = [
        draw(4, 3, dtype=torch.float32),
        draw(7),
        draw(12, dtype=torch.float32, seed=1) * 1e20,
        draw(12, dtype=torch.float16, seed=2),
        torch.full((7,), math.nan),
        draw(3, 4, dtype=torch.float32, seed=3),
    ]
    rows = stats.measure_many(tensors)
    assert rows.shape == (6, len(statistics.FIELDS))
    for row, x in zip(rows, tensors, strict=True):
        assert_same(one(row), twin(x))


def test_a_divisor_divides_values_and_leaves_counts():
    x = draw(64, dtype=torch.float16) * 1e4
    found, scaled = measured(x), measured(x, divisor=1024.0)
    assert {k: scaled[k] for k in COUNTS} == {k: found[k] for k in COUNTS}
    for name, power in {"mean": 1, "var": 2, "rms": 1, "absmax": 1, "absmean": 1}.items():
        assert scaled[name] == pytest.approx(found[name] / 1024.0**power, rel=1e-14)


def test_measuring_leaves_the_tensor_and_its_graph_alone():
    x = draw(2, 3, 4).requires_grad_()
    y = x * 2
    before = y.detach().clone()
    assert not stats.measure(y).requires_grad
    assert not stats.measure_tokens(y)[0].requires_grad
    assert torch.equal(y, before)


FORMATS = st.sampled_from(list(DTYPES.values()))


@st.composite
def tensors(draw):
    """Tensors of tokens with every kind of value that their format holds."""
    dtype = draw(FORMATS)
    limits = torch.finfo(dtype)
    largest = min(limits.max, 1e150)  # the variance of larger fp64 values has no fp64
    special = [0.0, -0.0, largest, -largest, limits.tiny, limits.tiny / 2, math.nan, math.inf]
    numbers = st.floats(-largest, largest, allow_subnormal=True)
    entry = st.one_of(numbers, st.floats(-2, 2), st.sampled_from(special))
    shape = [draw(st.integers(1, 4)) for _ in range(3)]
    size = math.prod(shape)
    values = draw(st.lists(entry, min_size=size, max_size=size))
    return torch.tensor(values, dtype=torch.float64).to(dtype).reshape(shape)


@settings(max_examples=150, deadline=None)
@given(tensors())
def test_every_tensor_is_measured_as_by_the_twin(x):
    vector, token_rms = stats.measure_tokens(x)
    assert_same(one(vector), twin(x, token_dim=1), rel=1e-9)
    slack = 1e-150 * one(vector)["absmax"]  # squares relative to the tensor's largest underflow
    slack = 0 if math.isnan(slack) else slack
    np.testing.assert_allclose(token_rms.numpy(), token_rms_twin(x), rtol=1e-9, atol=slack)


@settings(max_examples=50, deadline=None)
@given(tensors(), st.data())
def test_every_split_merges_to_the_whole(x, data):
    cut = data.draw(st.integers(1, x.shape[0]))
    parts = [p for p in (x[:cut], x[cut:]) if len(p)]
    vectors = torch.stack([stats.measure_tokens(p)[0] for p in parts])
    assert_same(one(stats.merge(vectors[:, None])[0]), twin(x, token_dim=1), rel=1e-9)


def test_a_share_of_the_first_token_may_be_too_small_for_a_number():
    x = torch.tensor([[[0.0, 1.9571e-162], [0.0, 0.75]]], dtype=torch.float64)
    assert 0 <= measured_tokens(x)["first_share"] < sys.float_info.min


def test_a_tensor_without_entries_has_no_statistics_of_tokens():
    vector = stats.measure(torch.ones(0))
    assert math.isnan(vector[statistics.INDEX["first_share"]])
    assert math.isnan(vector[statistics.INDEX["lost"]])
    assert vector[statistics.INDEX["numel"]] == 0


def test_one_pass_is_taken_as_it_is_and_several_are_merged():
    x = draw(4, 5, 3)
    whole = stats.merge_passes([stats.measure_tokens(x)])
    parts = stats.merge_passes([stats.measure_tokens(part) for part in x.split(2)])
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=0, equal_nan=True)
