"""Rows of the layers table, compared: by key, exactly or within a part of the rms."""

import math

import numpy as np
import pandas as pd
import torch

from slow_statistics import COUNTS
from stability.results import schema
from stability.results.statistics import FIELDS
from tiny import Ran

KEY = [c for c in schema.LAYER_KEY if c != "run"]
NUMBERS = [f.name for f in FIELDS]


def by_key(ran: Ran) -> pd.DataFrame:
    return ran.layers.set_index(KEY)[NUMBERS].sort_index()


def assert_equal(one: pd.DataFrame, other: pd.DataFrame, rel: float = 0.0) -> None:
    """The same rows with the same numbers; means and variances within rel of the rms."""
    assert one.index.equals(other.index)
    for name in NUMBERS:
        a, b = one[name].to_numpy(float, na_value=math.nan), other[name].to_numpy(float)
        if rel == 0 or name in COUNTS:
            np.testing.assert_array_equal(a, b, err_msg=name)
        else:
            rms = other["rms"].to_numpy(float)
            size = {"mean": rms, "var": rms**2, "lost": np.inf}.get(name, np.abs(b))
            close = (np.abs(a - b) <= rel * size) | (np.isnan(a) & np.isnan(b))
            assert close.all(), (name, one.index[~close].tolist()[:3], a[~close][:3], b[~close][:3])


def drop(ran: Ran, rows: pd.Series) -> Ran:
    return ran._replace(layers=ran.layers[~rows])


def poison(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.flatten()[3] = math.nan
    return tensor
