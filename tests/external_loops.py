"""What tests of external loops share: small chains of layers, and rows in a fixed order."""

import json

import pandas as pd
import torch
from torch import nn

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
