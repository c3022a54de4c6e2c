"""The benchmark runs and compares every variant with the first."""

import json
import re
import runpy
import sys

import pytest
import torch

from stability import bench, shell
from stability.config.names import KINDS
from stability.model import build
from stability.model.gpt import loss_sum
from stability.nanogpt_step import NanoGPT, nanogpt_step
from stability.recording import stats
from stability.results import statistics
from stability.training.passes import train_batch


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


def test_kinds_and_plain_hooks_are_timed_and_written_as_json(tmp_path, capsys):
    words = ["--depth", "1", "--width", "16", "--context", "8", "--rounds", "2", "--kinds"]
    assert bench.main([*words, "--json", str(tmp_path / "times.json")]) == 0
    found = json.loads((tmp_path / "times.json").read_text())
    assert found["depth"] == 1 and found["torch"] and found["device"].startswith("cpu")
    names = [f"eager, {kind} recorded" for kind in KINDS]
    wanted = ["eager", "eager, recorded", bench.NANOGPT, *names, "eager, hooks with .item()"]
    assert [*found["seconds"]] == wanted
    assert all(len(times) == 2 and min(times) > 0 for times in found["seconds"].values())


def test_nanogpts_step_is_that_of_the_same_network():
    """With the GPT's weights it has the GPT's loss, and as many parameters."""
    built = build.build(bench.bench_config(depth=2, width=32, context=8, compiled=False))
    batch, gpt = train_batch(built, 0), built.model
    vocab = gpt.embed.wte.shape[0]
    twin = NanoGPT(built.config, vocab)
    assert sum(p.numel() for p in twin.parameters()) == sum(p.numel() for p in gpt.parameters())
    with torch.no_grad():
        twin.wte.weight.copy_(gpt.embed.wte)
        twin.wpe.weight.copy_(gpt.embed.wpe)
        for mine, block in zip(twin.blocks, gpt.blocks, strict=True):
            f, mlp = block.attn.f, block.mlp.f
            mine.qkv.weight.copy_(torch.cat([f.q.weight, f.k.weight, f.v.weight]))
            mine.attn_out.load_state_dict(f.attn_out.state_dict())
            mine.mlp[0].load_state_dict(mlp.mlp_in.state_dict())
            mine.mlp[2].load_state_dict(mlp.mlp_out.state_dict())
            mine.qkv.bias.zero_()
        found = twin(batch.x_BT, batch.y_BT)
        wanted = loss_sum(gpt(batch.x_BT), batch.y_BT) / batch.y_BT.numel()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)


def test_nanogpts_step_trains():
    built = build.build(bench.bench_config(depth=1, width=16, context=8, compiled=False))
    built.config.train.lr = 1e-2
    run = nanogpt_step(built.config, built.model.embed.wte.shape[0], train_batch(built, 0))
    losses = [float(run()) for _ in range(20)]
    assert losses[-1] < losses[0] - 0.1


def test_a_ratio_is_the_median_over_rounds():
    times = {"a": [1.0, 9.0, 4.0], "b": [1.0, 3.0, 2.0]}
    assert bench.ratio(times, "a", "b") == 2.0


def test_plain_hooks_find_the_numbers_that_the_recorder_finds():
    x = torch.randn(3, 5, 7)
    columns = statistics.columns(stats.measure(x)[None].numpy())
    for name, value in bench.items_of(x).items():
        assert value == pytest.approx(columns[name][0], rel=1e-5, abs=1e-7)


def test_times_that_cannot_be_written_are_said_in_a_line(tmp_path, capsys):
    words = ["--depth", "1", "--width", "16", "--context", "8", "--rounds", "1"]
    assert bench.main([*words, "--json", str(tmp_path / "no" / "times.json")]) == 2
    assert "times.json: No such file or directory" in capsys.readouterr().err
