"""Every operation of a pass is listed with what it read and wrote; the first culprit is named."""

import math

import pytest
import torch
from torch import nn

from stability.config.names import Key
from stability.recording.operations import Operation, OperationTrace, TensorSummary

GOOD = TensorSummary("float32", (2,), 1.0, 0)
BAD = TensorSummary("float32", (2,), 1.0, 1)


def traced(work, sites=()):
    with OperationTrace(dict(sites)) as trace:
        work()
    return trace


@pytest.mark.parametrize(
    ("inputs", "outputs", "culprit"),
    [
        ((GOOD,), (GOOD,), False),
        ((GOOD,), (GOOD, BAD), True),
        ((GOOD, BAD), (BAD,), False),
        ((BAD,), (GOOD,), False),
        ((), (BAD,), True),
    ],
)
def test_a_culprit_turns_finite_inputs_into_an_output_that_is_not(inputs, outputs, culprit):
    assert Operation(0, "forward", "start", "op", inputs, outputs).is_culprit is culprit


def test_an_operation_tells_type_shape_size_and_damage_of_what_it_read_and_wrote():
    x = torch.tensor([[1.0, -3.0, math.nan], [2.0, math.inf, 0.0]], dtype=torch.float16)
    y = torch.tensor([[1.0], [2.0]], dtype=torch.float16)
    (operation,) = traced(lambda: x + y).operations
    assert "add" in operation.name and operation.number == 0
    assert operation.inputs == (
        TensorSummary("float16", (2, 3), 3.0, 2),
        TensorSummary("float16", (2, 1), 2.0, 0),
    )
    assert operation.outputs == (TensorSummary("float16", (2, 3), 4.0, 2),)


def test_where_nothing_is_finite_there_is_no_largest_value():
    (operation,) = traced(lambda: torch.full((3,), math.nan) * 2).operations[-1:]
    assert math.isnan(operation.inputs[0].absmax) and operation.inputs[0].nonfinite == 3


def test_whole_numbers_are_no_tensors_that_could_break():
    (operation,) = traced(lambda: torch.ones(3).sum() * 2).operations[-1:]
    assert len(operation.inputs) == 1
    index = torch.tensor([0, 1])
    (operation,) = traced(lambda: index + index).operations
    assert operation.inputs == operation.outputs == ()


def test_views_and_masks_are_not_listed():
    x = torch.ones(2, 3)

    def work():
        x.t()
        x.view(3, 2)
        torch.empty(3)
        torch.full((3,), -math.inf)
        x.new_zeros(3)
        x.masked_fill(x > 0, -math.inf)

    trace = traced(work)
    assert [operation.name for operation in trace.operations] == ["aten.gt.Scalar"]
    assert trace.culprit() is None


def test_the_first_culprit_counts():
    def work():
        huge = torch.full((2,), 1e30)
        innocent = huge * 1e30  # the first that is not finite
        torch.log(torch.zeros(2)) + innocent

    trace = traced(work)
    culprit = trace.culprit()
    assert culprit is not None and "mul" in culprit.name
    assert [operation.number for operation in trace.operations] == [*range(len(trace.operations))]
    assert sum(operation.is_culprit for operation in trace.operations) == 2


def test_sites_are_left_as_they_were_also_after_an_error():
    site = nn.Identity()
    with pytest.raises(ValueError, match="a bug"), OperationTrace({Key(0, "mlp", "a"): site}):
        assert site._forward_hooks
        raise ValueError("a bug")
    assert not site._forward_hooks


def test_a_module_under_two_keys_is_named_by_the_first():
    site, keys = nn.Identity(), (Key(0, "mlp", "resid_post"), Key(1, "attn", "resid_pre"))
    trace = traced(lambda: site(torch.ones(2)) * 2, [(key, site) for key in keys])
    assert trace.operations[-1].place == f"after {keys[0]}"
