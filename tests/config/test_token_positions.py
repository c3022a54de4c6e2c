"""Which token positions are looked at, and in which groups."""

import pytest

from stability.config.token_positions import groups, positions


@pytest.mark.parametrize("time", [1, 2, 63, 64])
def test_short_sequences_are_looked_at_token_by_token(time):
    assert positions(time) == list(range(time))


def test_of_long_sequences_64_even_positions_are_looked_at_with_both_ends():
    assert positions(127) == list(range(0, 127, 2))
    assert positions(64 * 63 + 1) == list(range(0, 64 * 63 + 1, 64))


@pytest.mark.parametrize(
    ("time", "quarter", "rest"),
    [(16, [1, 2, 3], [*range(4, 16)]), (7, [], [*range(1, 7)]), (1, [], [])],
)
def test_the_groups_are_the_first_token_the_first_quarter_and_the_rest(time, quarter, rest):
    found = {name: list(range(time))[part] for name, part in groups(time).items()}
    assert found == {"first": [0], "quarter": quarter, "rest": rest}
