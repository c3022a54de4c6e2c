"""What is legal and probably not meant is said before a sweep starts."""

import pytest

from stability.sweep.cautions import cautions
from tiny import make_config


@pytest.mark.parametrize(
    ("norm", "init", "is_said"),
    [
        ("lns", "gpt2", True),
        ("skipinit", "wang", True),
        ("lns", "xavier", False),
        ("pre", "gpt2", False),
        ("dssn", "tiny", False),  # the pair of its source: the outer norm undoes the std
    ],
)
def test_branches_that_are_scaled_with_depth_twice(norm, init, is_said):
    found = cautions([make_config(norm=norm, init=init)] * 2)
    assert len(found) == is_said
    assert all(f"norm={norm} and init={init}" in text for text in found)
