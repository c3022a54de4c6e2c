"""What a run writes of a step."""

from stability.training.step_log import SpikeDetector


def test_a_spike_is_far_above_the_recent_medians():
    detector = SpikeDetector()
    losses = [3.0] * 12 + [4.1] + [3.0] * 5 + [3.9, 3.0]
    norms = [1.0] * 19 + [10.5]
    found = [detector.is_spike(a, b) for a, b in zip(losses, norms, strict=True)]
    assert [i for i, spike in enumerate(found) if spike] == [12, 19]


def test_a_step_is_a_spike_only_after_ten_finite_ones():
    detector = SpikeDetector()
    steps = [(3.0, 1.0)] * 9 + [(float("nan"), 1.0), (1e9, 1e9), (1e9, 1e9)]
    assert [detector.is_spike(*step) for step in steps] == [False] * 11 + [True]
    assert len(detector.recent) == 11
