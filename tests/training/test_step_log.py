"""What the host writes down of a step."""

from collections import deque

from stability.training.step_log import Journal


def test_a_spike_stands_far_above_the_recent_medians():
    journal = Journal.__new__(Journal)
    journal.recent = deque(maxlen=50)
    losses = [3.0] * 12 + [4.1] + [3.0] * 5 + [3.9, 3.0]
    norms = [1.0] * 19 + [10.5]
    found = [journal._spiked(a, b) for a, b in zip(losses, norms, strict=True)]
    assert [i for i, spiked in enumerate(found) if spiked] == [12, 19]
