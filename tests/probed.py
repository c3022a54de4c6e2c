"""A tiny model off its start, and what probes give of it."""

import pandas as pd
import torch

from stability.config import knobs
from stability.model import build
from stability.model.gpt import draw, loss_sum
from stability.training import probes
from stability.training.passes import Batch
from tiny import make_config

ALL = list(knobs.PROBES)
FP64 = {"dtype": "fp64"}


class Probed:
    """A tiny model off its start, its batch, and the rows that the probes give of it."""

    def __init__(self, names, changes=None, **over):
        self.config = make_config({"record.probes": names, **(changes or {})}, **over)
        self.built = build.build(self.config)
        self.model = self.built.model
        with torch.no_grad():
            for i, p in enumerate(self.model.parameters()):
                p.add_(0.1 * draw(i, "shake", p.shape))
        shape = (0, self.config.train.batch_size, self.config.model.context, 0)
        self.x, self.y = map(torch.from_numpy, self.built.source.batch(*shape, 0.0))
        self.prober = probes.Prober(self.built, "run")
        self.rows = self.prober.take(Batch(0, self.x, self.y))
        keys = zip(*(self.rows[c] for c in ("layer", "sublayer", "item")), strict=True)
        self.values = dict(zip(keys, self.rows["value"], strict=True))
        self.model.eval()  # dropout off, as probes see it; norms as in training
        for sub in (s for b in self.model.blocks for s in b.sublayers().values()):
            if sub.norm is not None:
                sub.norm.train()
        if self.model.head.norm is not None:
            self.model.head.norm.train()

    def streams(self):
        """x_0 and every x_post, in a dict by place, of a pass made by hand."""
        x_BTD = self.model.embed(self.x)
        found = {(-1, "embed"): x_BTD}
        for layer, block in enumerate(self.model.blocks):
            for name, sub in block.sublayers().items():
                found[layer, name] = x_BTD = sub(x_BTD)
        return found

    def loss(self, logits):
        return loss_sum(logits, self.y) / self.y.numel()


def by_layer(probed):
    """For each linear layer: (x, y, delta, weight gradient), from hooks set by hand."""
    seen = {}

    def hook(module, inputs, output):
        output.retain_grad()
        seen[module] = (inputs[0], output)

    weights = {p: k for k, p in probed.model.weights().items()}
    hooks = [
        m.register_forward_hook(hook)
        for m in probed.model.modules()
        if type(m).__name__ == "Linear"
    ]
    probed.model.zero_grad()
    probed.loss(probed.model(probed.x)).backward()
    for h in hooks:
        h.remove()
    return {
        weights[m.weight]: (x.detach(), y.detach(), y.grad, m.weight.grad)
        for m, (x, y) in seen.items()
    }


def gradients(probed):
    """x_0 and every x_post by place, and the gradient there, by retain_grad."""
    streams = probed.streams()
    for x in streams.values():
        x.retain_grad()
    last = list(streams.values())[-1]
    probed.loss(probed.model.head(last, probed.model.embed.wte)).backward()
    return {place: (x.detach(), x.grad) for place, x in streams.items()}


def read_by_head(model, x):
    """What the head multiplies with its matrix."""
    for part in (model.embed, *model.blocks):
        x = part(x)
    return (x if model.head.norm is None else model.head.norm(x)).detach().double()


def fixed_batch(probed):
    """The first validation batch."""
    size, time = probed.config.train.batch_size, probed.config.model.context
    return map(torch.from_numpy, probed.built.source.val_batch(0, size, time, 0.0))


def probes_of(ran):
    """The probes table of a run."""
    return pd.read_parquet(ran.folder / "probes.parquet")
