"""The benchmark runs and compares every variant with the first."""

import re
import runpy
import sys

import pytest

from stability import bench, shell
from stability.model import build


def test_every_variant_is_timed_and_compared_with_the_first(capsys):
    words = ["--depth", "1", "--width", "16", "--context", "8", "--rounds", "2"]
    assert bench.main(words) == 0
    shown = capsys.readouterr().out
    plain, recorded = (
        re.search(rf"│ {name} +│ +([\d.]+) │ +([\d.]+) │", shown)
        for name in ("eager", "eager, recorded")
    )
    assert plain is not None and recorded is not None
    assert float(plain[2]) == 1.0
    ratio = float(recorded[1]) / float(plain[1])
    assert float(recorded[2]) == pytest.approx(ratio, rel=0.1)


def test_the_help_gives_the_meaning_and_the_default_of_every_number(capsys):
    with pytest.raises(SystemExit):
        bench.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, (default, what) in bench.NUMBERS.items():
        assert f"--{name} N {what} (default: {default})" in text


def test_ctrl_c_ends_the_command_with_its_code(monkeypatch):
    def interrupted(config):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "build", interrupted)
    monkeypatch.setattr(sys, "argv", ["stability.bench"])
    monkeypatch.delitem(sys.modules, "stability.bench")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("stability.bench", run_name="__main__")
    assert ended.value.code == shell.INTERRUPTED


@pytest.mark.parametrize("value", ["0", "-1", "2.5", "many"])
def test_a_number_that_measures_nothing_is_refused(value, capsys):
    with pytest.raises(SystemExit):
        bench.main(["--rounds", value])
    assert f"{value}: must be a whole number >= 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--context 1000000", "model.context=1000000: must be < "),
        ("--width 99999999999", "model.width=99999999999: must be 1 to 65,536"),
        ("--width 33", "model.heads=2: must divide model.width=33"),
        ("--threads 99999999999", "threads=99999999999: must be 1 to 1,024"),
        ("--depth 99999999999999999999", "depth=99999999999999999999: must fit into 64 bits"),
    ],
)
def test_a_size_out_of_range_is_refused_in_one_line(words, said, capsys):
    assert bench.main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"stability.bench: {said}") and err.count("\n") == 1
