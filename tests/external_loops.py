"""What tests of external loops share: chains of layers, rows in a fixed order, plain hooks."""

import json

import pandas as pd
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

LAYERS = r"layers\.(\d+)"


def torch_tanh(layer, x):
    return torch.tanh(layer(x))


class Chain(nn.Module):
    """Layers in a row, with something done to the output of each."""

    def __init__(self, layers=None, call=torch_tanh, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(layers or [nn.Linear(8, 8) for _ in range(depth)])
        self.call = call

    def forward(self, x):
        for layer in self.layers:
            x = self.call(layer, x)
        return x


def chain(*args, **kwargs):
    torch.manual_seed(0)
    return Chain(*args, **kwargs)


def batch(seed=1):
    return torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(seed))


def rows(folder, **where):
    """Rows of the layers table with these values, in a fixed order."""
    frame = pd.read_parquet(folder / "layers.parquet")
    frame = frame.astype({"kind": str, "site": str, "sublayer": str})
    for name, value in where.items():
        frame = frame[frame[name] == value]
    return frame.sort_values(["step", "kind", "layer", "sublayer", "site"]).reset_index(drop=True)


def steps(folder):
    return pd.read_parquet(folder / "steps.parquet")


def state(folder):
    return json.loads((folder / "run.json").read_text())


def rms(tensor):
    return tensor.detach().double().square().mean().sqrt().item()


class PlainHooks:
    """The rms of each step's tensors, from forward hooks, ``retain_grad`` and ``p.grad`` alone.

    A step ends with the step of an optimizer of the model; its passes are those that a backward
    pass has reached. Gradients of parameters are those that the last backward pass left.

    Args:
        model: the model.
        names: dotted names of the modules whose outputs count.
    """

    def __init__(self, model, names):
        self.model, self.names, self.steps = model, names, []
        self._passes, self._grads = {name: [] for name in names}, {}
        modules = dict(model.named_modules())
        handles = [
            modules[name].register_forward_hook(lambda _, __, out, name=name: self._see(name, out))
            for name in names
        ]
        for name, p in model.named_parameters():
            if p.requires_grad:
                hook = p.register_post_accumulate_grad_hook
                handles.append(hook(lambda p, name=name: self._grads.update({name: rms(p.grad)})))
        handles.append(register_optimizer_step_post_hook(self._end_step))
        self._handles = handles

    def _see(self, name, out):
        out = out[0] if isinstance(out, tuple) else out
        if torch.is_grad_enabled() and out.requires_grad:
            out.retain_grad()
            self._passes[name].append(out)

    def _end_step(self, optimizer, *_):
        own = {id(p) for p in self.model.parameters()}
        if not own & {id(p) for group in optimizer.param_groups for p in group["params"]}:
            return
        used = {n: [x for x in outs if x.grad is not None] for n, outs in self._passes.items()}
        act = [rms(torch.cat([x.flatten() for x in used[n]])) for n in self.names]
        grad = [rms(torch.cat([x.grad.flatten() for x in used[n]])) for n in self.names]
        numel = [sum(x.numel() for x in used[n]) for n in self.names]
        self.steps.append({"act": act, "grad": grad, "numel": numel, "weight_grad": self._grads})
        self._passes, self._grads = {name: [] for name in self.names}, {}

    def remove(self):
        for handle in self._handles:
            handle.remove()


def assert_recorded(folder, plain, every=1, rel=1e-5):
    """Recorded steps hold what plain hooks saw; blocks are the sublayer ``block``."""
    recorded = range(0, len(plain.steps), every)
    assert sorted(set(rows(folder).step)) == list(recorded)
    for number in recorded:
        step = plain.steps[number]
        at_blocks = rows(folder, step=number, sublayer="block", site="resid_post")
        for kind in ("act", "grad"):
            found = at_blocks[at_blocks.kind == kind].sort_values("layer")
            assert found.rms.tolist() == pytest.approx(step[kind], rel=rel)
            assert found.numel.tolist() == step["numel"]
        grads = rows(folder, step=number, kind="weight_grad")
        assert sorted(grads.rms) == pytest.approx(sorted(step["weight_grad"].values()), rel=rel)
