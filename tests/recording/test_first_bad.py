"""The first non-finite tensor in the order of execution is named."""

import math

import pytest
import torch

from recorded_rows import poison
from stability.config.names import Key
from stability.model import build
from tiny import make_config, run


def in_the_forward_pass(step: int):
    def prepare(built: build.Built) -> None:
        site = built.model.sites()[Key(1, "mlp", "branch_out")]
        passes = iter(range(10**6))
        site.register_forward_hook(
            lambda m, i, out: poison(out) if next(passes) >= step else None, prepend=True
        )

    return prepare


def in_the_backward_pass(step: int):
    def prepare(built: build.Built) -> None:
        site = built.model.sites()[Key(0, "attn", "branch_out")]
        passes = iter(range(10**6))

        def hook(module, args, out):
            if out.requires_grad and next(passes) >= step:
                out.register_hook(poison)

        site.register_forward_hook(hook, prepend=True)

    return prepare


FAULTS = {
    "forward": (in_the_forward_pass, (1, "mlp", "branch_out", "act")),
    "backward": (in_the_backward_pass, (0, "attn", "branch_out", "grad")),
}


@pytest.mark.parametrize("every", [1, 10], ids=["recorded", "between recordings"])
@pytest.mark.parametrize("fault", FAULTS)
def test_lesson_10_the_first_bad_site_is_named_and_the_weights_before_it_are_intact(
    tmp_path, fault, every
):
    inject, (layer, sublayer, site, kind) = FAULTS[fault]
    config = make_config({"record.every": every, "train.steps": 6})
    good = run(make_config({"record.every": every, "train.steps": 2}), tmp_path / "good")
    ran = run(config, tmp_path / "bad", prepare=inject(step=2))
    where = {"step": 2, "layer": layer, "sublayer": sublayer, "site": site, "kind": kind}
    assert ran.info["status"] == "diverged"
    assert ran.info["first_bad"] == where
    assert f"{kind} at layer {layer}, {sublayer}, {site}" in ran.info["outcome"]
    assert ran.value("nonfinite", **where) == 1
    assert ran.steps.step.tolist() == [0, 1, 2]
    for p, q in zip(ran.built.model.parameters(), good.built.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_bad_weight_is_named_before_what_it_spoils(tmp_path):
    def prepare(built: build.Built) -> None:
        with torch.no_grad():
            built.model.weights()[Key(1, "attn", "v")][0, 0] = math.inf

    ran = run(make_config(), tmp_path, prepare)
    where = {"step": 0, "layer": 1, "sublayer": "attn", "site": "v", "kind": "weight"}
    assert ran.info["first_bad"] == where
