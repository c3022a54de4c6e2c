"""Rows of one seed from numbers, and what a measure says of them."""

import math

import pandas as pd
import pytest

from stability.claims.measures import Unmeasured, measures

ROW = {
    "run": "a", "step": 0, "layer": 0, "sublayer": "mlp", "site": "resid_post", "kind": "act",
    "numel": 4, "nonfinite": 0, "var": 1.0, "rms": 1.0, "token_rms_median": 1.0, "lost": 0,
}  # fmt: skip
RUN = {
    "run": "a", "seed": 0, "depth": 3, "status": "completed", "dtype": "fp16", "steps_done": 20,
    "model.width": 50, "model.heads": 4, "model.context": 8, "model.sublayers": "linear",
    "finfo.max": 65504.0, "data.vocab": 20, "data.unigram_entropy": 3.0, "final_val_loss": 2.0,
    "learned": True, "init.build._target_": "stability.parts.inits.Normal", "init.build.std": 0.1,
}  # fmt: skip
"""The gain of a weight of this run is 50 * 0.1^2 = 0.5."""


def rows(*some):
    return pd.DataFrame([ROW | row for row in some])


def runs(*some):
    return pd.DataFrame([RUN | row for row in some or [{}]])


def probes(*some):
    return pd.DataFrame([{"run": "a", "layer": 1, "sublayer": "mlp", "item": ""} | r for r in some])


def stream(values, kind="act", run="a", median=()):
    """The stream after l = 0 .. L blocks of attention and MLP: var of activations, or |delta|.

    What an attention leaves in the middle of a block differs, so that it is not taken for a block's
    output; so do the rows of another site.
    """
    found = []
    for blocks, value in enumerate(values):
        var, rms = (value, math.sqrt(value)) if kind == "act" else (1.0, value / 2)  # numel is 4
        own = {"var": var, "rms": rms, "token_rms_median": median[blocks] if median else rms / 10}
        where = {"run": run, "kind": kind, "layer": blocks - 1}
        found.append({**where, "sublayer": "mlp" if blocks else "embed", **own})
        if blocks:
            wrong = {**where, "var": 777.0, "rms": 777.0, "token_rms_median": 777.0}
            found += [{**wrong, "sublayer": "attn"}, {**wrong, "site": "resid_pre"}]
    return rows(*reversed(found))


def joined(frames):
    return pd.concat(frames, ignore_index=True)


def measure(name, **given):
    return measures()[name](**given)


def reason(name, **given):
    with pytest.raises(Unmeasured) as why:
        measure(name, **given)
    return str(why.value)
