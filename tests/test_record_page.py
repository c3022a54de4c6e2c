"""The loops of docs/record.md run as they stand, and what they record is what plain hooks see."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import nanogpt_model
import stability
from external_loops import PlainHooks, assert_recorded, state, steps
from stability import plot

PAGE = (Path(__file__).parents[1] / "docs" / "record.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^## ", PAGE, flags=re.M)}

BLOCKS = {
    "Plain PyTorch": ("plain", [f"layers.{i}" for i in range(4)]),
    "nanoGPT": ("nanogpt", [f"transformer.h.{i}" for i in range(3)]),
    "The Trainer of Hugging Face": ("hf", [f"transformer.h.{i}" for i in range(3)]),
    "The Trainer of Lightning": ("lightning", [f"encoder.layers.{i}" for i in range(3)]),
    "accelerate": ("accelerate", [f"layers.{i}" for i in range(3)]),
}
"""Section -> folder of its run, and names of the blocks of its model."""
NEEDS = {
    "The Trainer of Hugging Face": ("transformers", "accelerate"),
    "The Trainer of Lightning": ("lightning",),
    "accelerate": ("accelerate",),
}


def script(section):
    (code,) = re.findall(r"```python\n(.*?)```", SECTIONS[section], re.S)
    return compile(code, f"docs/record.md, {section}", "exec")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "model", nanogpt_model)
    torch.manual_seed(0)
    yield tmp_path
    if "accelerate" in sys.modules:  # it keeps the settings of a process
        from accelerate.state import AcceleratorState, PartialState

        AcceleratorState._reset_state()
        PartialState._reset_state()


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # of Lightning
@pytest.mark.filterwarnings("ignore:.*(of workers|num_workers|srun|summary|pin_memory).*")
@pytest.mark.parametrize("section", BLOCKS)
def test_each_loop_runs_and_records_what_plain_hooks_see(here, monkeypatch, section):
    if missing := [name for name in NEEDS.get(section, ()) if not importlib.util.find_spec(name)]:
        pytest.skip(f"{missing[0]} is not installed")
    folder, names = BLOCKS[section]
    plain = []
    begin = stability.record

    def record(model, *args, **kwargs):
        plain.append(PlainHooks(model, names))
        return begin(model, *args, **kwargs)

    monkeypatch.setattr(stability, "record", record, raising=False)
    for name in ("stability.hf", "stability.lightning"):
        if NEEDS.get(section):
            importlib.import_module(name)
            monkeypatch.setattr(f"{name}.record", record)
    exec(script(section), {"__name__": "page"})
    plain[0].remove()
    assert len(plain) == 1 and len(plain[0].steps) == 20
    run = here / "outputs" / "mine" / folder
    assert_recorded(run, plain[0], every=10)
    found = state(run)
    assert (found["status"], found["steps_done"], found["notes"]) == ("completed", 20, None)
    assert steps(run).loss.notna().all()
    assert steps(run).clip_factor.notna().sum() == 2


def test_three_lines_record_a_model_at_init(here):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.partition("\n## ")[0], re.S)
    assert len([line for line in code.splitlines() if line]) == 3
    config = nanogpt_model.GPTConfig(8, 29, 3, 2, 16, 0.0, False)
    model = nanogpt_model.GPT(config)
    plain = PlainHooks(model, [f"transformer.h.{i}" for i in range(3)])
    ids = torch.randint(29, (2, 8))
    exec(code, {"model": model, "batch": ids, "loss_of": lambda model, x: model(x, x)[1]})
    torch.optim.SGD(model.parameters()).step()
    plain.remove()
    run = here / "outputs" / "mine" / "init"
    assert_recorded(run, plain)
    assert state(run)["status"] == "completed"
    assert plot.main(["outputs/mine", "--format", "png", "--figures", "variance,gradient"]) == 0
    assert (here / "outputs" / "mine" / "figures" / "variance.png").exists()
