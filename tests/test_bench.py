"""The benchmark runs and compares every variant with the first."""

import re

import pytest

from stability import bench


def test_every_variant_is_timed_and_compared_with_the_first(capsys):
    bench.main(["--depth", "1", "--width", "16", "--context", "8", "--rounds", "2"])
    shown = capsys.readouterr().out
    plain, recorded = (
        re.search(rf"│ {name} +│ +([\d.]+) │ +([\d.]+) │", shown)
        for name in ("eager", "eager, recorded")
    )
    assert plain is not None and recorded is not None
    assert float(plain[2]) == 1.0
    ratio = float(recorded[1]) / float(plain[1])
    assert float(recorded[2]) == pytest.approx(ratio, rel=0.1)
